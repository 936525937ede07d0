"""SwiGLU's gate as a Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def silu_mul_kernel(p_gate_up, p_out, width, x_row, BLOCK: tl.constexpr):
    """Gate ``BLOCK`` channels of one row: ``out = g * sigmoid(g) * u``.

    ``p_gate_up`` ``[rows, 2 * width]`` float32, float16 or bfloat16, the gate's channels first; ``p_out``
    ``[rows, width]``. Grid ``(rows, channel tiles)``; products run in float32. Moves ``3 * width`` elements a row.

    Source: Shazeer 2020 (arXiv 2002.05202), equation 5 (SwiGLU with beta 1).
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = o_channel < width
    b_gate = tl.load(p_gate_up + i_row * x_row + o_channel, mask=inside, other=0.0).to(tl.float32)
    b_up = tl.load(p_gate_up + i_row * x_row + width + o_channel, mask=inside, other=0.0).to(tl.float32)
    b_out = b_gate * tl.sigmoid(b_gate) * b_up
    tl.store(p_out + i_row * width + o_channel, b_out.to(p_out.dtype.element_ty), mask=inside)


def silu_mul_gpu(gate_up: Tensor) -> Tensor:
    """SwiGLU's gate as in ``naive.silu_mul``, in one pass.

    Args:
        gate_up: ``[..., 2F]``, float32, float16 or bfloat16.

    Returns:
        ``[..., F]`` in the input's dtype, contiguous.

    Raises:
        ValueError: the last axis is odd.
    """
    width, odd = divmod(gate_up.shape[-1], 2)
    if odd:
        raise ValueError(f"{gate_up.shape[-1]} channels are no gate and up of equal width")
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    if not out.numel():
        return out
    rows = gate_up.reshape(-1, 2 * width).contiguous()
    with torch.cuda.device_of(gate_up):
        silu_mul_kernel[(rows.shape[0], triton.cdiv(width, _BLOCK))](
            rows, out, width, rows.stride(0), BLOCK=_BLOCK, num_warps=4
        )
    return out
