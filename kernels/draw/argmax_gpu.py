"""Row-wise argmax as Triton kernels: chunks first, then the chunks' winners."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier

_CHUNK = 4096


@triton.jit
def chunk_argmax_kernel(p_x, p_key, x_row, x_column, width, chunks, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """The winner of one chunk of one row as one integer: the value's rank in the high half, ``~index`` in the low.

    Ranks order as the values do: the bits of a positive float, the inverted bits of a negative one (+0.0 is added
    first, so that both zeros share a rank). ``p_x`` ``[B, N]`` float32, float16 or bfloat16, any strides; ``p_key``
    ``[B, chunks]`` int64. Grid ``(chunks, B)``. Moves ``B * N`` elements.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_chunk = tl.program_id(0)
    i_row = tl.program_id(1).to(tl.int64)
    o_column = i_chunk * BLOCK + tl.arange(0, BLOCK)
    inside = o_column < width
    b_x = tl.load(p_x + i_row * x_row + o_column.to(tl.int64) * x_column, mask=inside, other=float("-inf"))
    b_bits = (b_x.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
    b_rank = tl.where(b_bits < 0, b_bits ^ 0x7FFFFFFF, b_bits).to(tl.int64)
    # What lies past the row ranks under minus infinity and is never chosen.
    b_key = tl.where(inside, (b_rank << 32) + (0x7FFFFFFF - o_column), -0x7FFFFFFFFFFFFFFF)
    tl.store(p_key + i_row * chunks + i_chunk, tl.max(b_key, 0))


@triton.jit
def winner_kernel(p_key, p_out, chunks, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """The index in each row's largest key, one program a row: ``p_key`` ``[B, chunks]``, ``p_out`` ``[B]`` int64."""
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_chunk = tl.arange(0, BLOCK)
    b_key = tl.load(p_key + i_row * chunks + o_chunk, mask=o_chunk < chunks, other=-0x7FFFFFFFFFFFFFFF)
    tl.store(p_out + i_row, 0x7FFFFFFF - (tl.max(b_key, 0) & 0xFFFFFFFF))


def argmax_gpu(x: Tensor) -> Tensor:
    """Row-wise argmax as in ``naive.argmax``: two launches, where ``torch.argmax`` gives a long row to few programs.

    Args:
        x: ``[B, N]``, float32, float16 or bfloat16, any strides, ``N`` at most ``2 ** 31 - 1``.

    Returns:
        ``[B]`` int64.

    Raises:
        ValueError: a row without columns has no largest value.
    """
    rows, width = x.shape
    if not width:
        raise ValueError("argmax of rows without columns")
    chunks = triton.cdiv(width, _CHUNK)
    keys = torch.empty(rows, chunks, dtype=torch.int64, device=x.device)
    out = torch.empty(rows, dtype=torch.int64, device=x.device)
    overlap = overlap_settings(True, x.device)
    with torch.cuda.device_of(x):
        chunk_argmax_kernel[(chunks, rows)](x, keys, *x.stride(), width, chunks, BLOCK=_CHUNK, num_warps=8, **overlap)
        winner_kernel[(rows,)](keys, out, chunks, BLOCK=triton.next_power_of_2(chunks), num_warps=1, **overlap)
    return out
