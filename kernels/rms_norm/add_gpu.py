"""Residual addition and RMS normalisation as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier


@dataclass(frozen=True, slots=True)
class Launch:
    """Warps that share a row, and whether the kernel may start before its predecessors end (``kernels/overlap.py``)."""

    num_warps: int
    launch_pdl: bool = True


def choose_launch(width: int) -> Launch:
    """One warp per 512 channels, two vectors of 16 bytes a thread; four per 4,096 would leave fewer loads in flight."""
    return Launch(min(16, max(1, triton.next_power_of_2(width) // 512)))


@triton.jit
def store_normed(p_out, b_total, b_weight, inside, eps, WIDTH: tl.constexpr):
    """Write ``weight * round(t / sqrt(mean(t^2) + eps))`` of a row ``t`` in float32, zero outside, to ``p_out``."""
    b_normed = b_total * tl.rsqrt(tl.sum(b_total * b_total, 0) / WIDTH + eps)
    b_normed = b_normed.to(p_out.dtype.element_ty).to(tl.float32)
    tl.store(p_out, (b_weight * b_normed).to(p_out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    p_delta, p_residual, p_weight, p_out, p_total, d_row, d_channel, r_row, r_channel, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, DELTA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row a program: ``t = round(residual + delta)``, ``out = weight * round(t / sqrt(mean(t^2) + eps))``.

    ``p_residual`` and ``p_delta`` ``[rows, WIDTH]`` float32, float16 or bfloat16, any strides (in elements);
    ``p_weight`` ``[WIDTH]``; ``p_out`` and ``p_total`` contiguous. Without ``DELTA`` the residual is its own total and
    is not written. Sums run in float32. Moves ``4 * WIDTH`` elements a row, or 2, and the weight.

    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4.
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_channel = tl.arange(0, BLOCK)
    inside = o_channel < WIDTH
    let_next_start(PDL)
    b_weight = tl.load(p_weight + o_channel, mask=inside, other=0.0).to(tl.float32)
    wait_for_earlier(PDL)
    b_total = tl.load(p_residual + i_row * r_row + o_channel * r_channel, mask=inside, other=0.0).to(tl.float32)
    if DELTA:
        b_total += tl.load(p_delta + i_row * d_row + o_channel * d_channel, mask=inside, other=0.0).to(tl.float32)
        b_stored = b_total.to(p_total.dtype.element_ty)
        tl.store(p_total + i_row * WIDTH + o_channel, b_stored, mask=inside)
        b_total = b_stored.to(tl.float32)
    store_normed(p_out + i_row * WIDTH + o_channel, b_total, b_weight, inside, eps, WIDTH)


def add_rms_norm_gpu(
    delta: Tensor | None, residual: Tensor, weight: Tensor, eps: float, *, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """Residual addition and normalisation as in ``naive.add_rms_norm``, in one launch.

    Args:
        delta: ``[..., H]`` in ``residual``'s dtype, or ``None``.
        residual: ``[..., H]``, float32, float16 or bfloat16.
        weight: ``[H]`` in ``residual``'s dtype.
        eps: added to the mean square.
        launch: how; by ``choose_launch`` when left out.

    Returns:
        The normalised sum and the sum, both ``[..., H]`` in ``residual``'s dtype; the latter is ``residual`` where
        there is no delta.

    Raises:
        ValueError: shapes or dtypes differ.
    """
    width = residual.shape[-1]
    if weight.dtype != residual.dtype or weight.shape != (width,):
        given = f"a weight {weight.dtype} {list(weight.shape)}"
        raise ValueError(f"a residual {residual.dtype} of {width} channels cannot take {given}")
    if delta is not None and (delta.dtype != residual.dtype or delta.shape != residual.shape):
        given = f"a delta {delta.dtype} {list(delta.shape)}"
        raise ValueError(f"a residual {residual.dtype} {list(residual.shape)} cannot take {given}")
    launch = launch or choose_launch(width)
    out = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    total = residual if delta is None else torch.empty_like(out)
    if not out.numel():
        return out, total
    rows = residual.reshape(-1, width)
    deltas = rows if delta is None else delta.reshape(-1, width)
    with torch.cuda.device_of(residual):
        add_rms_norm_kernel[(rows.shape[0],)](
            deltas, rows, weight.contiguous(), out, total, *deltas.stride(), *rows.stride(), eps,
            WIDTH=width, BLOCK=triton.next_power_of_2(width), DELTA=delta is not None,
            num_warps=launch.num_warps, **overlap_settings(launch.launch_pdl, residual.device),
        )  # fmt: skip
    return out, total
