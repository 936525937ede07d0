"""Addition, RMS norm and projection of one row as one Triton kernel: every program norms the row for itself."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.linear.gpu import add_product, gate, load_weight
from longdecode.kernels.linear.launch import norm_launch
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier


@triton.jit
def norm_linear_kernel(
    p_delta, p_residual, p_norm, p_weight, p_bias, p_out, p_total, w_row, w_channel, width, up, eps,
    K: tl.constexpr, DELTA: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, VECTOR: tl.constexpr, EVICTION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``t = round(residual + delta)``, ``x = norm * round(t / sqrt(mean(t^2) + eps))``, ``y_n = sum_k x_k W_nk + b_n``.

    Gated, ``silu(sum x_k G_nk) * sum x_k U_nk``. Grid ``ceil(N / BLOCK_N)``. ``p_delta`` and ``p_residual`` ``[K]``,
    ``p_norm`` ``[K]``, ``p_weight`` ``[N, K]`` (the up rows ``up`` elements after the gate's) and ``p_bias`` ``[N]`` in
    one of float32, float16 and bfloat16; ``p_out`` ``[N]`` and ``p_total`` ``[K]``, which the first program writes. A
    row is one tile, whose weights wait in registers for the kernels ahead. Rounds as ``add_rms_norm`` and ``linear``
    do. Moves ``N * K`` elements (``2 * N * K`` gated), and three rows a program, from L2.

    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4; Shazeer 2020 (arXiv 2002.05202), equation 5.
    """
    let_next_start(PDL)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Programs past the edge repeat the last row: loads without a mask stay whole vectors.
    o_from = tl.minimum(o_n, width - 1).to(tl.int64)
    o_k = tl.arange(0, BLOCK_K)[None, :]
    inside = o_k < K
    b_weight, b_up = load_weight(p_weight + o_from[:, None] * w_row, w_channel, up, o_k, K, EVICTION, GATED)
    b_norm = tl.load(p_norm + o_k, mask=inside, other=0.0).to(tl.float32)
    wait_for_earlier(PDL)
    dtype = p_out.dtype.element_ty
    b_total = tl.load(p_residual + o_k, mask=inside, other=0.0).to(tl.float32)
    if DELTA:
        b_total += tl.load(p_delta + o_k, mask=inside, other=0.0).to(tl.float32)
        b_total = b_total.to(dtype).to(tl.float32)
        if tl.program_id(0) == 0:
            tl.store(p_total + o_k, b_total.to(dtype), mask=inside)
    b_factor = tl.rsqrt(tl.sum(b_total * b_total, 1) / K + eps)
    b_x = (b_total * b_factor[:, None]).to(dtype).to(tl.float32)
    b_x = (b_norm * b_x).to(dtype).to(tl.float32)
    b_zero = tl.zeros([BLOCK_N, BLOCK_K // VECTOR], dtype=tl.float32)
    b_out = tl.sum(add_product(b_zero, b_weight, b_x, VECTOR), 1)
    if BIAS:
        b_out += tl.load(p_bias + o_from).to(tl.float32)
    if GATED:
        b_out = gate(b_out, tl.sum(add_product(b_zero, b_up, b_x, VECTOR), 1), dtype)
    tl.store(p_out + o_n, b_out.to(dtype), mask=o_n < width)


def norm_linear_gpu(
    delta: Tensor | None, residual: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, gated: bool
) -> tuple[Tensor, Tensor]:
    """Add, norm and project one row as ``naive.norm_linear`` does, in one launch.

    Args:
        delta: ``[..., K]`` of one row, or ``None``.
        residual: ``[..., K]``, likewise, float16 or bfloat16 as all tensors, or float32.
        norm: ``[K]``.
        eps: added to the mean square.
        weight: ``[N, K]``, ``[2F, K]`` where gated.
        bias: ``[N]`` or ``None``.
        gated: whether to gate.

    Returns:
        The projection ``[..., N]`` or ``[..., F]``, and the total ``[..., K]``.
    """
    channels, width = residual.shape[-1], weight.shape[0] // (2 if gated else 1)
    launch = norm_launch(channels, gated)
    out = torch.empty((*residual.shape[:-1], width), dtype=residual.dtype, device=residual.device)
    residual = residual.contiguous()
    total = residual if delta is None else torch.empty_like(residual)
    with torch.cuda.device_of(residual):
        norm_linear_kernel[(triton.cdiv(width, launch.block_n),)](
            residual if delta is None else delta.contiguous(), residual, norm, weight,
            weight if bias is None else bias.contiguous(), out, total, *weight.stride(), width,
            width * weight.stride(0), eps,
            K=channels, DELTA=delta is not None, BIAS=bias is not None, GATED=gated, BLOCK_N=launch.block_n,
            BLOCK_K=launch.block_k, VECTOR=16 // residual.element_size(), EVICTION=launch.eviction,
            num_warps=launch.num_warps, maxnreg=launch.max_registers,
            **overlap_settings(launch.launch_pdl, residual.device),
        )  # fmt: skip
    return out, total
