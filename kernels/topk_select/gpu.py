"""Top-k selection as Triton kernels: one program a list where it fits in registers, radix passes where not."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.topk_select.entries import kept_borders, load_keys, write_chosen
from longdecode.kernels.topk_select.naive import check_budget
from longdecode.kernels.topk_select.radix import radix_select

_VECTOR = 4
_LONGEST = 32_768


@dataclass(frozen=True, slots=True)
class TopkLaunch:
    """Launch constants: warps a program, entries a program takes at once, bits of the threshold that a pass settles.

    ``digit_bits`` 0: one program holds a whole list, of at most 32,768 entries, and scans it by ``chunk`` to write.
    """

    num_warps: int
    chunk: int
    digit_bits: int = 0


def choose_launch(size: int) -> TopkLaunch:
    """Launch constants for lists of ``size``; sized by hand, not tuned."""
    if size > _LONGEST:
        return TopkLaunch(8, 8192, digit_bits=6)
    warps = min(16, max(4, triton.next_power_of_2(size) // 512))
    return TopkLaunch(warps, 8192 if size <= 8192 else 4096)


def candidates(size: int) -> list[TopkLaunch]:
    """Launches worth timing for lists of ``size``."""
    found = []
    if size <= _LONGEST:
        block = triton.next_power_of_2(size)
        for warps in (4, 8, 16, 32):
            if 4 <= block // (32 * warps) <= 64:
                # A thread has 64 registers at 32 warps, and the scan's temporaries beside its part of the list.
                found += [
                    TopkLaunch(warps, 32 * warps * entries) for entries in ((4, 8) if warps == 32 else (4, 8, 16))
                ]
    if size > 8192:
        chunks = [(4096, 4), (4096, 8), (8192, 8), (8192, 16), (16_384, 16), (16_384, 32)]
        found += [TopkLaunch(warps, chunk, bits) for chunk, warps in chunks for bits in (4, 5, 6, 7, 8)]
    return found or [choose_launch(size)]


@triton.jit
def topk_select_kernel(
    p_scores, p_valid, p_indices, p_counts,
    score_batch, score_head, score_entry, heads, size, width, keep_first, keep_last,
    BLOCK: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, WARP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``{i : s_i among the width largest of s_0 ... s_{valid-1}}`` of one list held in registers; grid ``(B * H,)``.

    Bisects for the largest key ``t`` with ``#{key >= t} >= width``, between a lower bound and the largest key: each
    step counts at three thresholds at once, packed first in 10 bits a count within a thread, then in 21 bits a count
    across threads, and the search ends early where a count is exact. The lower bound is the smallest of the threads'
    own maxima where as many threads hold entries as are to be taken, else that of all floats.

    ``p_scores`` ``[B, H, N]`` float32, float16 or bfloat16; ``p_valid`` ``[B]`` integer; ``p_indices``
    ``[B, H, width]`` and ``p_counts`` ``[B, H]`` int64, contiguous. Moves ``N`` scores in and ``width`` indices out.
    """
    i_list = tl.program_id(0).to(tl.int64)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    o_entry = tl.arange(0, BLOCK)
    p_scores += (i_list // heads) * score_batch + (i_list % heads) * score_head
    b_keys = load_keys(p_scores, score_entry, o_entry, size, valid, first, last)
    b_tile = tl.reshape(b_keys, [BLOCK // (THREADS * VECTOR), THREADS, VECTOR])

    rivals = last - first
    need = tl.minimum(width - first - (valid - last), rivals)
    b_bound = tl.max(tl.max(b_tile, 2), 0)
    # Thresholds are int64, so that sums and differences of int32 keys hold. `low` never exceeds the key sought and
    # `high` always does; `reached` and `over` are how many keys are at least `low` and `high`.
    high = tl.max(b_bound).to(tl.int64) + 1
    low = tl.min(tl.where(b_bound == -2147483648, 2147483647, b_bound)).to(tl.int64)
    if tl.minimum(THREADS, valid // VECTOR) < width:
        low = low * 0 - 2147483647
    over = need * 0
    reached = over - 1
    if need == rivals:
        low = low * 0 - 2147483647
        reached = need
    elif need == 0:
        low = low * 0 + 2147483647
        reached = need
    while (high - low > 1) & (reached != need):
        span = high - low
        one = low + tl.maximum(span >> 2, 1)
        two = low + tl.maximum(span >> 1, 1)
        three = low + tl.maximum((3 * span) >> 2, 1)
        b_hits = tl.where(b_tile >= one.to(tl.int32), 1, 0) + tl.where(b_tile >= two.to(tl.int32), 1 << 10, 0)
        b_hits += tl.where(b_tile >= three.to(tl.int32), 1 << 20, 0)
        b_hits = tl.sum(tl.sum(b_hits, 2), 0)
        if WARP > 1:
            # Whole warps sum int32 in one instruction.
            b_hits = tl.sum(tl.reshape(b_hits, [THREADS // WARP, WARP]), 1)
        b_wide = (b_hits & 1023).to(tl.int64) | (((b_hits >> 10) & 1023).to(tl.int64) << 21)
        hits = tl.sum(b_wide | ((b_hits >> 20).to(tl.int64) << 42), 0)
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

    exact = reached == need
    threshold = low.to(tl.int32)
    count = tl.minimum(valid, width)
    above_before, tied_before = 0, 0
    p_indices += i_list * width
    for i_tile in tl.static_range(0, BLOCK, TILE):
        o_tile = i_tile + tl.arange(0, TILE)
        if TILE < BLOCK:
            # Read again, because the scan's temporaries would not fit in registers beside the whole list.
            b_keys = load_keys(p_scores, score_entry, o_tile, size, valid, first, last)
        b_kept = ((o_tile < first) | (o_tile >= last)) & (o_tile < valid)
        above = (b_keys > threshold) | ((b_keys == threshold) & exact) | b_kept
        tied = (b_keys == threshold) & (exact == 0)
        b_step = write_chosen(
            p_indices, o_tile, above, tied, above_before, tied_before, need - over, count, width, TILE
        )  # fmt: skip
        if TILE < BLOCK:
            step = tl.sum(b_step, 0)
            above_before += step & 0xFFFF
            tied_before += (step >> 16) & 0xFFFF
    tl.store(p_counts + i_list, count.to(tl.int64))


def topk_select_gpu(
    scores: Tensor,
    k: int,
    valid: Tensor,
    *,
    keep_first: int = 0,
    keep_last: int = 0,
    launch: TopkLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Top-k selection as in ``naive.topk_select``, without a sort and without leaving the device.

    Args:
        scores: ``[B, H, N]`` float32, float16 or bfloat16, any strides, ``N`` below 2^30.
        k: how many to take.
        valid: ``[B]`` integers, the leading entries that count.
        keep_first: leading valid entries that are always taken, inside ``k``.
        keep_last: trailing valid entries, likewise.
        launch: launch constants; from the shapes when left out. The result does not depend on them.

    Returns:
        ``indices`` ``[B, H, min(k, N)]`` and ``counts`` ``[B, H]``, int64.

    Raises:
        ValueError: ``k`` is below 1 or below ``keep_first + keep_last``, or a list is too long for the launch.
    """
    check_budget(k, keep_first, keep_last)
    batch, heads, size = scores.shape
    width = min(k, size)
    launch = launch or choose_launch(size)
    if launch.digit_bits == 0 and size > _LONGEST:
        raise ValueError(f"{size} entries do not fit one program, which holds {_LONGEST} at most")
    indices = torch.empty(batch, heads, width, dtype=torch.int64, device=scores.device)
    counts = torch.empty(batch, heads, dtype=torch.int64, device=scores.device)
    valid = valid.contiguous()
    with torch.cuda.device_of(scores):
        if launch.digit_bits:
            radix_select(
                scores, valid, indices, counts, keep_first, keep_last, launch.chunk, launch.digit_bits, launch.num_warps
            )
            return indices, counts
        block = max(128, triton.next_power_of_2(size))
        threads = min(32 * launch.num_warps, block // _VECTOR)
        topk_select_kernel[(batch * heads,)](
            scores, valid, indices, counts, *scores.stride(), heads, size, width, keep_first, keep_last,
            BLOCK=block, THREADS=threads, VECTOR=_VECTOR,
            # A warp's packed counts have 10 bits.
            WARP=32 if block * 32 // threads < 1024 else 1,
            TILE=min(block, launch.chunk), num_warps=launch.num_warps,
        )  # fmt: skip
    return indices, counts
