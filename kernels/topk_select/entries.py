"""Shared parts of the selection kernels: sortable keys, entries kept always, the ordered write of what is chosen."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

NO_KEY = tl.constexpr(-(2**31))
"""Key of entries that do not compete, below that of minus infinity, which is -2139095041."""
LEAST_KEY = tl.constexpr(1 - 2**31)
"""Not above the key of any float."""
KEPT_KEY = tl.constexpr(2**31 - 1)
"""Above the key of infinity, which is 2139095040; marks entries always taken."""


class Chosen(NamedTuple):
    """Destination of a selection: list ``i`` of a row is written to ``indices[b, heads[i], :width]``.

    ``indices`` ``[B, H, K]`` int64 with neighbouring entries, ``K`` at least ``width``; without ``heads`` ``[R]`` the
    lists go in order. ``counts`` ``[B, R]`` int64 contiguous, or None where nobody asks for them. ``row_k`` ``[B]``
    contiguous integers: entries wanted in each row, where that is not ``width``.
    """

    indices: Tensor
    width: int
    counts: Tensor | None = None
    heads: Tensor | None = None
    row_k: Tensor | None = None


@triton.jit
def chosen_list(p_indices, p_heads, index_batch, index_list, i_list, lists):
    """Return the first index of list ``i_list`` of all (int64), of which a row has ``lists``."""
    i_in_row = i_list % lists
    if p_heads is not None:
        i_in_row = tl.load(p_heads + i_in_row)
    return p_indices + (i_list // lists) * index_batch + i_in_row * index_list


@triton.jit
def store_count(p_counts, i_list, count):
    """Store the number of valid entries of a list, where counts are asked for."""
    if p_counts is not None:
        tl.store(p_counts + i_list, count.to(tl.int64))


@triton.jit
def wanted_of(p_row_k, i_batch, width):
    """Return how many entries a row wants: its own number, at most ``width``, or ``width`` where there is none."""
    wanted = width
    if p_row_k is not None:
        wanted = tl.minimum(tl.load(p_row_k + i_batch), width).to(tl.int32)
    return wanted


@triton.jit
def order_keys(b_scores):
    """Return int32 keys in the order of the floats; both zeros have key 0."""
    b_bits = tl.where(b_scores == 0.0, 0.0, b_scores).to(tl.int32, bitcast=True)
    return b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)


@triton.jit
def kept_borders(valid, keep_first, keep_last):
    """Entries before the first border, and from the second up to ``valid``, are always taken."""
    first = tl.minimum(valid, keep_first)
    return first, tl.maximum(valid - keep_last, first)


@triton.jit
def load_keys(p_scores, score_entry, o_entry, size, first, last):
    """Load the keys of the entries that compete, ``NO_KEY`` for the others."""
    b_scores = tl.load(p_scores + o_entry.to(tl.int64) * score_entry, mask=o_entry < size, other=0.0)
    competes = (o_entry >= first) & (o_entry < last)
    # The mask of the load is the list's static size, so that it stays one of whole vectors; what lies past `valid`
    # may be NaN and is dropped here.
    return tl.where(competes, order_keys(b_scores.to(tl.float32)), NO_KEY)


@triton.jit
def write_chosen(
    p_indices, o_entry, above, tied, above_before, tied_before, spare, count, width, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the chosen entries of a tile at their ranks, and zeros where the tile covers slots past ``count``.

    Chosen are all ``above`` and, of the ``tied``, those with fewer than ``spare`` tied before them in the list.
    ``above_before`` and ``tied_before`` count what earlier tiles hold. One scan carries both counts in 16 bits each.
    Returns each entry's step of that scan.
    """
    b_step = above.to(tl.int32) + (tied.to(tl.int32) << 16)
    b_before = tl.cumsum(b_step, 0) - b_step
    b_tied = tied_before + ((b_before >> 16) & 0xFFFF)
    b_rank = above_before + (b_before & 0xFFFF) + tl.minimum(b_tied, spare)
    chosen = above | (tied & (b_tied < spare))
    tl.store(p_indices + b_rank, o_entry.to(tl.int64), mask=chosen)
    if count < width:
        tl.store(p_indices + o_entry, tl.zeros([BLOCK], dtype=tl.int64), mask=(o_entry >= count) & (o_entry < width))
    return b_step
