"""Top-k selection of lists too long for one program: counting passes over the digits of the keys, then one write."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.topk_select.entries import (
    NO_KEY,
    Chosen,
    chosen_list,
    kept_borders,
    load_keys,
    store_count,
    write_chosen,
)

_KEY_BITS = 32
_TILE = 16


@triton.jit
def first_state(first, last, valid, width):
    """Where a list's search stands before any pass: prefix, entries still wanted, whether the prefix settles it.

    A settled prefix takes every key at or above it: 1 takes all (keys are 0x007fffff and more), 2^32 - 1 takes none.
    """
    rivals = last - first
    need = tl.minimum(width - first - (valid - last), rivals)
    prefix = tl.where(need == rivals, 1, tl.where(need == 0, 0xFFFFFFFF, 0)).to(tl.int64)
    return prefix, need, ((need == rivals) | (need == 0)).to(tl.int32)


@triton.jit
def next_state(
    p_digits, prefix, need, settled, i_chunk, chunks, shift,
    BINS: tl.constexpr, BEFORE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Settle one digit of a list's threshold by the counts that a pass left for its chunks.

    Returns the state as in ``first_state``, then how many keys known to be chosen and how many tied this digit adds to
    chunk ``i_chunk``, or with ``BEFORE`` to all chunks before it.
    """
    above, tied = need * 0, need * 0
    if settled == 0:
        o_bin = tl.arange(0, BINS)
        b_all = tl.zeros([BINS], dtype=tl.int32)
        b_mine = tl.zeros([BINS], dtype=tl.int32)
        for i_tile in range(0, chunks, TILE):
            o_chunk = i_tile + tl.arange(0, TILE)
            o_digits = o_chunk[:, None] * BINS + o_bin[None, :]
            b_digits = tl.load(p_digits + o_digits, mask=(o_chunk < chunks)[:, None], other=0)
            b_all += tl.sum(b_digits, 0)
            mine = (o_chunk < i_chunk) if BEFORE else (o_chunk == i_chunk)
            b_mine += tl.sum(tl.where(mine[:, None], b_digits, 0), 0)
        b_at_least = tl.sum(b_all, 0) - tl.cumsum(b_all, 0) + b_all
        digit = tl.sum((b_at_least >= need).to(tl.int32), 0) - 1
        over = tl.sum(tl.where(o_bin > digit, b_all, 0), 0)
        here = tl.sum(tl.where(o_bin == digit, b_all, 0), 0)
        prefix |= digit.to(tl.int64) << shift
        above = tl.sum(tl.where(o_bin > digit, b_mine, 0), 0)
        tied = tl.sum(tl.where(o_bin == digit, b_mine, 0), 0)
        need -= over
        if here == need:
            settled = settled * 0 + 1
            above += tied
            tied = tied * 0
    return prefix, need, settled, above, tied


@triton.jit
def unsigned_keys(b_keys):
    """The order of int32 keys as that of uint32, whose digits count upwards."""
    return b_keys.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def radix_count_kernel(
    p_scores, p_valid, p_state, p_above, p_digits, p_old_state, p_old_digits,
    score_batch, score_head, score_entry, heads, size, width, keep_first, keep_last, shift, old_shift, bins,
    FIRST: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One pass: count the digits at ``shift`` of a chunk's keys that agree with the list's prefix so far.

    Grid ``(chunks, lists)``. Every program first derives its list's state from the last pass's state and counts
    (``p_old_state`` ``[lists, 3]`` int64 and ``p_old_digits`` ``[lists, chunks, BINS]`` int32), the first chunk stores
    it, and each adds to its own ``p_above`` ``[lists, chunks]`` int32, keys known to be chosen. The digit has ``bins``
    values. Settled lists are not read again. Moves ``N`` scores a list in while it is unsettled.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_chunk = tl.program_id(0)
    i_list = tl.program_id(1).to(tl.int64)
    chunks = tl.num_programs(0)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    o_mine = i_list * chunks + i_chunk
    if FIRST:
        prefix, need, settled = first_state(first, last, valid, width)
        above = need * 0
    else:
        prefix = tl.load(p_old_state + i_list * 3)
        need = tl.load(p_old_state + i_list * 3 + 1).to(tl.int32)
        settled = tl.load(p_old_state + i_list * 3 + 2).to(tl.int32)
        prefix, need, settled, added, _ = next_state(
            p_old_digits + i_list * chunks * BINS, prefix, need, settled, i_chunk, chunks, old_shift, BINS, False, TILE
        )  # fmt: skip
        above = tl.load(p_above + o_mine) + added
    tl.store(p_above + o_mine, above)
    if i_chunk == 0:
        tl.store(p_state + i_list * 3, prefix)
        tl.store(p_state + i_list * 3 + 1, need.to(tl.int64))
        tl.store(p_state + i_list * 3 + 2, settled.to(tl.int64))
    if settled == 0:
        b_count = tl.zeros([BINS], dtype=tl.int32)
        if i_chunk * CHUNK < valid:
            o_entry = i_chunk * CHUNK + tl.arange(0, CHUNK)
            p_scores += (i_list // heads) * score_batch + (i_list % heads) * score_head
            b_keys = load_keys(p_scores, score_entry, o_entry, size, valid, first, last)
            # Below the digit the prefix is zero, above it a key that differs leaves more than a digit.
            b_digit = (unsigned_keys(b_keys) ^ prefix.to(tl.uint32)) >> shift.to(tl.uint32)
            counted = (b_digit < bins.to(tl.uint32)) & (b_keys != NO_KEY)
            b_count = tl.histogram(tl.where(counted, b_digit.to(tl.int32), 0), BINS, mask=counted)
        tl.store(p_digits + o_mine * BINS + tl.arange(0, BINS), b_count)


@triton.jit
def radix_write_kernel(
    p_scores, p_valid, p_state, p_above, p_digits, p_indices, p_counts, p_heads, index_batch, index_list,
    score_batch, score_head, score_entry, heads, size, width, keep_first, keep_last, shift,
    BINS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the chosen entries of a chunk after those of the chunks before it; grid ``(chunks, lists)``.

    The threshold follows from the last pass's counts. Moves ``N`` scores a list in and ``width`` indices out.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_chunk = tl.program_id(0)
    i_list = tl.program_id(1).to(tl.int64)
    chunks = tl.num_programs(0)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    prefix = tl.load(p_state + i_list * 3)
    need = tl.load(p_state + i_list * 3 + 1).to(tl.int32)
    settled = tl.load(p_state + i_list * 3 + 2).to(tl.int32)
    prefix, need, settled, above_before, tied_before = next_state(
        p_digits + i_list * chunks * BINS, prefix, need, settled, i_chunk, chunks, shift, BINS, True, TILE
    )  # fmt: skip
    for i_tile in range(0, i_chunk, 4 * TILE):
        o_chunk = i_tile + tl.arange(0, 4 * TILE)
        above_before += tl.sum(tl.load(p_above + i_list * chunks + o_chunk, mask=o_chunk < i_chunk, other=0), 0)
    start = i_chunk * CHUNK
    above_before += tl.minimum(start, first) + tl.maximum(tl.minimum(start, valid) - last, 0)
    if valid <= width:
        # All are taken, and no pass counted.
        above_before = tl.minimum(start, valid)

    count = tl.minimum(valid, width)
    if i_chunk == 0:
        store_count(p_counts, i_list, count)
    if (start < valid) | ((start < width) & (count < width)):
        o_entry = start + tl.arange(0, CHUNK)
        p_scores += (i_list // heads) * score_batch + (i_list % heads) * score_head
        b_keys = load_keys(p_scores, score_entry, o_entry, size, valid, first, last)
        competes = b_keys != NO_KEY
        b_unsigned = unsigned_keys(b_keys)
        threshold = prefix.to(tl.uint32)
        b_kept = ((o_entry < first) | (o_entry >= last)) & (o_entry < valid)
        above = (((b_unsigned > threshold) | ((b_unsigned == threshold) & (settled != 0))) & competes) | b_kept
        tied = (b_unsigned == threshold) & (settled == 0) & competes
        p_indices = chosen_list(p_indices, p_heads, index_batch, index_list, i_list, heads)
        write_chosen(p_indices, o_entry, above, tied, above_before, tied_before, need, count, width, CHUNK)


def radix_select(
    scores: Tensor,
    valid: Tensor,
    chosen: Chosen,
    keep_first: int,
    keep_last: int,
    chunk: int,
    digit_bits: int,
    num_warps: int,
) -> None:
    """Fill ``chosen`` with what ``topk_select`` returns, for lists of any length.

    ``32 / digit_bits`` passes narrow the threshold and one writes; a launch sees only what earlier launches finished,
    so that the result depends on no order of programs. The workspace needs no zeroing.

    Args:
        scores: ``[B, H, N]``.
        valid: ``[B]``, contiguous.
        chosen: to be written.
        keep_first: leading entries always taken.
        keep_last: trailing entries always taken.
        chunk: entries a program takes, a power of two up to 32,768.
        digit_bits: bits of the threshold that a pass settles, at least 2.
        num_warps: warps a program.
    """
    batch, heads, size = scores.shape
    lists, chunks, bins = batch * heads, triton.cdiv(size, chunk), 1 << digit_bits
    passes = triton.cdiv(_KEY_BITS, digit_bits)
    shifts = [max(0, _KEY_BITS - digit_bits * (step + 1)) for step in range(passes)]
    state = torch.empty(passes, lists, 3, dtype=torch.int64, device=scores.device)
    above = torch.empty(lists, chunks, dtype=torch.int32, device=scores.device)
    digits = torch.empty(2, lists, chunks, bins, dtype=torch.int32, device=scores.device)
    shared = (*scores.stride(), heads)
    for step, shift in enumerate(shifts):
        old = max(step - 1, 0)
        values = 1 << (shifts[old] - shift if step else digit_bits)
        radix_count_kernel[(chunks, lists)](
            scores, valid, state[step], above, digits[step % 2], state[old], digits[old % 2], *shared, size,
            chosen.width, keep_first, keep_last, shift, shifts[old], values,
            FIRST=step == 0, BINS=bins, CHUNK=chunk, TILE=_TILE, num_warps=num_warps,
            **overlap_settings(True, scores.device),
        )  # fmt: skip
    radix_write_kernel[(chunks, lists)](
        scores, valid, state[-1], above, digits[(passes - 1) % 2],
        chosen.indices, chosen.counts, chosen.heads, *chosen.indices.stride()[:2], *shared, size,
        chosen.width, keep_first, keep_last, shifts[-1], BINS=bins, CHUNK=chunk, TILE=_TILE, num_warps=num_warps,
        **overlap_settings(True, scores.device),
    )  # fmt: skip
