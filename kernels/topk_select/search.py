"""The search for a threshold among keys held in registers, or read again from memory at every step."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

VECTOR = 4
"""Neighbouring entries of a thread: 16 bytes of scores."""


@triton.jit
def quarters(low, high):
    """Return three thresholds inside ``(low, high)``, int64, that split it in four; equal where it is short."""
    span = high - low
    return low + tl.maximum(span >> 2, 1), low + tl.maximum(span >> 1, 1), low + tl.maximum((3 * span) >> 2, 1)


@triton.jit
def count_at_least(b_tile, one, two, three, THREADS: tl.constexpr, WARP: tl.constexpr):
    """Count the keys of ``[R, THREADS, VECTOR]`` that reach three thresholds, packed in 21 bits each of one int64.

    Within a thread, and within a warp where ``WARP`` is 32, a count has 10 bits of an int32.
    """
    b_hits = tl.where(b_tile >= one.to(tl.int32), 1, 0) + tl.where(b_tile >= two.to(tl.int32), 1 << 10, 0)
    b_hits += tl.where(b_tile >= three.to(tl.int32), 1 << 20, 0)
    b_hits = tl.sum(tl.sum(b_hits, 2), 0)
    if WARP > 1:
        # Whole warps sum int32 in one instruction.
        b_hits = tl.sum(tl.reshape(b_hits, [THREADS // WARP, WARP]), 1)
    b_wide = (b_hits & 1023).to(tl.int64) | (((b_hits >> 10) & 1023).to(tl.int64) << 21)
    return tl.sum(b_wide | ((b_hits >> 20).to(tl.int64) << 42), 0)


@triton.jit
def narrow(hits, one, two, three, low, high, reached, over, need):
    """Return the quarter of ``low`` to ``high`` that holds the ``need``-th largest key, and the counts at its ends."""
    at_one = (hits & 0x1FFFFF).to(tl.int32)
    at_two = ((hits >> 21) & 0x1FFFFF).to(tl.int32)
    at_three = (hits >> 42).to(tl.int32)
    if at_three >= need:
        low, reached = three, at_three
    elif at_two >= need:
        low, reached, high, over = two, at_two, three, at_three
    elif at_one >= need:
        low, reached, high, over = one, at_one, two, at_two
    else:
        high, over = one, at_one
    return low, high, reached, over


@triton.jit
def bisect(b_tile, need, slack, low, high, reached, THREADS: tl.constexpr, WARP: tl.constexpr):
    """Return a threshold that ``need`` to ``need + slack`` keys reach, or the largest that ``need`` do.

    Thresholds are int64, so that sums and differences of int32 keys hold. ``low`` never exceeds the ``need``-th largest
    key and ``high`` always does; ``reached`` is how many keys are at least ``low``, -1 where that is not known.

    Returns:
        The threshold, how many keys reach it, and, where those are too many, how many exceed it.
    """
    over = need * 0
    while (high - low > 1) & ((reached < need) | (reached > need + slack)):
        one, two, three = quarters(low, high)
        hits = count_at_least(b_tile, one, two, three, THREADS, WARP)
        low, high, reached, over = narrow(hits, one, two, three, low, high, reached, over, need)
    return low, reached, over
