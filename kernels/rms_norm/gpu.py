"""RMS normalisation as a Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_kernel(
    p_x, p_weight, p_out, x_outer, x_inner, x_channel, inner, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Normalise one vector a program: ``out = weight * round(x / sqrt(mean(x^2) + eps))``, rounded to ``x``'s dtype.

    ``p_x`` ``[outer, inner, WIDTH]`` float32, float16 or bfloat16, any strides (in elements); ``p_weight`` ``[WIDTH]``;
    ``p_out`` contiguous. Sums run in float32. Moves ``2 * WIDTH`` elements a vector, and the weight.

    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4.
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_channel = tl.arange(0, BLOCK)
    inside = o_channel < WIDTH
    o_x = (i_row // inner) * x_outer + (i_row % inner) * x_inner + o_channel * x_channel
    b_x = tl.load(p_x + o_x, mask=inside, other=0.0).to(tl.float32)
    b_normed = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / WIDTH + eps)
    b_normed = b_normed.to(p_out.dtype.element_ty).to(tl.float32)
    b_weight = tl.load(p_weight + o_channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(p_out + i_row * WIDTH + o_channel, (b_weight * b_normed).to(p_out.dtype.element_ty), mask=inside)


def rms_norm_gpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation as in ``naive.rms_norm``, in one pass.

    Args:
        x: ``[..., H]``, float32, float16 or bfloat16.
        weight: ``[H]`` in ``x``'s dtype, contiguous.
        eps: added to the mean square.

    Returns:
        ``[..., H]`` in ``x``'s dtype, contiguous.

    Raises:
        ValueError: the dtypes differ, or the weight is not ``H`` long.
    """
    width = x.shape[-1]
    if weight.dtype != x.dtype or weight.shape != (width,):
        raise ValueError(f"vectors {x.dtype} of {width} cannot take a weight {weight.dtype} {list(weight.shape)}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return out
    # The heads of a fused projection are rows at two strides; as three axes they need no copy.
    rows = x.reshape(-1, x.shape[-2] if x.dim() > 1 else 1, width)
    block = triton.next_power_of_2(width)
    with torch.cuda.device_of(x):
        rms_norm_kernel[(rows.shape[0] * rows.shape[1],)](
            rows, weight.contiguous(), out, *rows.stride(), rows.shape[1], eps,
            WIDTH=width, BLOCK=block, num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
    return out
