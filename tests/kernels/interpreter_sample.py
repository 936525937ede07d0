"""Operations whose shapes, dtypes and checks ``faster_interpreter`` works out otherwise; prints all that they give."""

from __future__ import annotations

import hashlib
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def sample_kernel(p_x, p_out, rows, N: tl.constexpr, M: tl.constexpr):
    """Broadcasts of both kinds, casts, sums, a product of matrices, a scan, and integers of three widths."""
    o_row, o_column = tl.arange(0, N), tl.arange(0, M)
    b_x = tl.load(p_x + o_row[:, None] * M + o_column[None, :], mask=o_row[:, None] < rows, other=1.0)
    b_shift = (o_row * 3 - 7).to(tl.int8)[:, None] + (o_column % 5)[None, :].to(tl.int64)
    b_low = b_x.to(tl.float16).to(tl.float32) * 2 + b_shift.to(tl.float32)
    b_dot = tl.dot(b_low, tl.trans(b_x), input_precision="ieee")
    b_sum = tl.sum(b_dot, 1)[:, None] + tl.max(b_low, 0)[None, :]
    b_scan = tl.associative_scan(b_sum, 1, _add)
    b_out = tl.where((b_shift > 0) & (o_row[:, None] != 2), b_scan, -b_sum) / (1 + rows)
    tl.store(p_out + o_row[:, None] * M + o_column[None, :], b_out, mask=o_row[:, None] < rows)


@triton.jit
def overflowing_kernel(p_out, big):
    """A product of 32-bit integers that do not fit, for ``big`` of 65,536 and more."""
    o = tl.arange(0, 16) + big
    tl.store(p_out + tl.arange(0, 16), o * o)


def digest() -> str:
    """Return a digest of the sample's output and of a block's name, and last what an overflow says."""
    x = torch.linspace(-3, 5, 16 * 32).view(16, 32)
    out = torch.full((16, 32), float("nan"))
    sample_kernel[(1,)](x, out, 13, 16, 32)
    assert out[:13].isfinite().all() and out[13:].isnan().all()
    block = tl.block_type(tl.float16, [16, tl.constexpr(32)])
    whole = torch.zeros(16, dtype=torch.int32)
    overflowing_kernel[(1,)](whole, 40_000)
    assert whole[0] == 40_000**2
    said = "no overflow is seen"
    try:
        overflowing_kernel[(1,)](whole, 70_000)
    except Exception as error:
        said = str(error.__cause__ or error)
    output = hashlib.sha256(out[:13].numpy().tobytes()).hexdigest()
    return "\n".join([output, block.name, str(block.shape), str(block.numel), said])


if __name__ == "__main__":
    sys.stdout.write(digest())
