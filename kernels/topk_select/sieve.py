"""Top-k selection of long lists by a sieve: group maxima give a bound, what passes it is few enough for one program."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.topk_select.entries import (
    KEPT_KEY,
    LEAST_KEY,
    NO_KEY,
    Chosen,
    chosen_list,
    kept_borders,
    load_keys,
    store_count,
    wanted_of,
    write_chosen,
)
from longdecode.kernels.topk_select.search import VECTOR, bisect, count_at_least, narrow, quarters

_COLUMNS = 512
_ROWS = 8


@triton.jit
def group_max_kernel(
    p_scores, p_valid, p_maxima, score_batch, score_head, score_entry, heads, size, groups, keep_first, keep_last,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Largest key of each strided group ``{g, g + groups, ...}`` of a list; grid ``(groups / COLUMNS, lists)``.

    ``p_maxima`` ``[lists, groups]`` int32. Moves ``N`` scores a list in.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_list = tl.program_id(1).to(tl.int64)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    p_scores += (i_list // heads) * score_batch + (i_list % heads) * score_head
    o_group = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    b_most = tl.full([COLUMNS], NO_KEY, dtype=tl.int32)
    for i_row in range(0, tl.cdiv(last, groups), ROWS):
        o_entry = (i_row + tl.arange(0, ROWS))[:, None] * groups + o_group[None, :]
        b_most = tl.maximum(b_most, tl.max(load_keys(p_scores, score_entry, o_entry, size, first, last), 0))
    tl.store(p_maxima + i_list * groups + o_group, b_most)


@triton.jit
def bound_kernel(
    p_maxima, p_valid, p_row_k, p_bound, heads, size, width, keep_first, keep_last,
    GROUPS: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, WARP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A key that at least as many group maxima reach as entries are wanted, and few more; grid ``(lists,)``.

    ``p_maxima`` ``[lists, GROUPS]`` and ``p_bound`` ``[lists]`` int32. Lists with fewer groups in use keep everything.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_list = tl.program_id(0).to(tl.int64)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    need = wanted_of(p_row_k, i_list // heads, width) - first - (valid - last)
    b_maxima = tl.load(p_maxima + i_list * GROUPS + tl.arange(0, GROUPS))
    b_tile = tl.reshape(b_maxima, [GROUPS // (THREADS * VECTOR), THREADS, VECTOR])
    high = tl.max(b_maxima).to(tl.int64) + 1
    low = tl.min(tl.where(b_maxima == NO_KEY, KEPT_KEY, b_maxima)).to(tl.int64)
    few = tl.sum((b_maxima != NO_KEY).to(tl.int32), 0) < need
    low = tl.where(few, LEAST_KEY, tl.where(need <= 0, KEPT_KEY, low))
    reached = tl.where(few | (need <= 0), need, -1)
    low, _, _ = bisect(b_tile, need, need // 16, low, high, reached, THREADS, WARP)
    tl.store(p_bound + i_list, low.to(tl.int32))


@triton.jit
def sieve_kernel(
    p_scores, p_valid, p_bound, p_passed, p_entries, p_keys,
    score_batch, score_head, score_entry, heads, size, keep_first, keep_last,
    WRITE: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Count a chunk's entries that reach the bound or are always kept, or ``WRITE`` them; grid ``(chunks, lists)``.

    Written in order, after those of the chunks before: their places (``p_entries`` ``[lists, N]`` int32) and keys
    (``p_keys`` likewise; ``KEPT_KEY`` for those always taken). ``p_passed`` ``[lists, chunks]`` int32 has the counts.
    Moves ``N`` scores a list in.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_chunk = tl.program_id(0)
    i_list = tl.program_id(1).to(tl.int64)
    chunks = tl.num_programs(0)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    o_entry = i_chunk * CHUNK + tl.arange(0, CHUNK)
    p_scores += (i_list // heads) * score_batch + (i_list % heads) * score_head
    p_passed += i_list * chunks
    b_keys = load_keys(p_scores, score_entry, o_entry, size, first, last)
    b_kept = ((o_entry < first) | (o_entry >= last)) & (o_entry < valid)
    passes = (b_keys >= tl.load(p_bound + i_list)) | b_kept
    b_pass = passes.to(tl.int32)
    if WRITE:
        rank = 0
        for i_tile in range(0, i_chunk, TILE):
            o_chunk = i_tile + tl.arange(0, TILE)
            rank += tl.sum(tl.load(p_passed + o_chunk, mask=o_chunk < i_chunk, other=0), 0)
        o_out = i_list * size + rank + tl.cumsum(b_pass, 0) - b_pass
        tl.store(p_entries + o_out, o_entry, mask=passes)
        tl.store(p_keys + o_out, tl.where(b_kept, KEPT_KEY, b_keys), mask=passes)
    else:
        tl.store(p_passed + i_chunk, tl.sum(b_pass, 0))


@triton.jit
def sieved_keys(p_keys, o_place, total):
    """Keys of what passed, none for those always kept and past the end."""
    b_keys = tl.load(p_keys + o_place, mask=o_place < total, other=NO_KEY)
    return tl.where(b_keys == KEPT_KEY, NO_KEY, b_keys)


@triton.jit
def sieved_select_kernel(
    p_valid, p_row_k, p_bound, p_passed, p_entries, p_keys, p_indices, p_counts, p_heads, index_batch, index_list,
    heads, size, width, chunks, keep_first, keep_last,
    BLOCK: tl.constexpr, TILE: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, WARP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Select exactly among what passed the sieve; grid ``(lists,)``.

    Up to ``BLOCK`` entries stay in registers for the search; more, as where very many are equal or high scores crowd
    in few groups, are read again at every step, slower but to the same result.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_list = tl.program_id(0).to(tl.int64)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    kept = first + valid - last
    p_keys += i_list * size
    p_entries += i_list * size
    total = 0
    for i_tile in range(0, chunks, THREADS):
        o_chunk = i_tile + tl.arange(0, THREADS)
        total += tl.sum(tl.load(p_passed + i_list * chunks + o_chunk, mask=o_chunk < chunks, other=0), 0)
    count = tl.minimum(wanted_of(p_row_k, i_list // heads, width), valid)
    need = count - kept
    low = tl.load(p_bound + i_list).to(tl.int64)
    high = low * 0 + KEPT_KEY
    # All that passed and compete reach the bound.
    reached = total - kept
    over = need * 0
    if reached > need:
        o_place = tl.arange(0, BLOCK)
        b_keys = sieved_keys(p_keys, o_place, total)
        b_tile = tl.reshape(b_keys, [BLOCK // (THREADS * VECTOR), THREADS, VECTOR])
        if total <= BLOCK:
            high = tl.max(b_keys).to(tl.int64) + 1
            low, reached, over = bisect(b_tile, need, 0, low, high, reached, THREADS, WARP)
        else:
            while (high - low > 1) & (reached != need):
                one, two, three = quarters(low, high)
                hits = low * 0
                for i_block in range(0, total, BLOCK):
                    b_more = sieved_keys(p_keys, i_block + o_place, total)
                    b_more = tl.reshape(b_more, [BLOCK // (THREADS * VECTOR), THREADS, VECTOR])
                    hits += count_at_least(b_more, one, two, three, THREADS, WARP)
                low, high, reached, over = narrow(hits, one, two, three, low, high, reached, over, need)

    exact = reached == need
    threshold = low.to(tl.int32)
    above_before, tied_before = 0, 0
    p_indices = chosen_list(p_indices, p_heads, index_batch, index_list, i_list, heads)
    for i_tile in range(0, total, TILE):
        o_tile = i_tile + tl.arange(0, TILE)
        b_keys = tl.load(p_keys + o_tile, mask=o_tile < total, other=NO_KEY)
        b_entry = tl.load(p_entries + o_tile, mask=o_tile < total, other=0)
        above = (b_keys > threshold) | ((b_keys == threshold) & exact) | (b_keys == KEPT_KEY)
        above = above & (b_keys != NO_KEY)
        tied = (b_keys == threshold) & (exact == 0) & (b_keys != KEPT_KEY) & (b_keys != NO_KEY)
        b_step = write_chosen(
            p_indices, b_entry, above, tied, above_before, tied_before, need - over, width, width, TILE
        )  # fmt: skip
        step = tl.sum(b_step, 0)
        above_before += step & 0xFFFF
        tied_before += (step >> 16) & 0xFFFF
    for i_tile in range(count, width, TILE):
        o_tile = i_tile + tl.arange(0, TILE)
        tl.store(p_indices + o_tile, tl.zeros([TILE], dtype=tl.int64), mask=o_tile < width)
    store_count(p_counts, i_list, count)


def warp_of(block: int, threads: int) -> int:
    """Threads whose packed counts of 10 bits can be summed before they are widened: a warp, or one."""
    return 32 if block * 32 // threads < 1024 else 1


def sieve_select(
    scores: Tensor, valid: Tensor, chosen: Chosen, keep_first: int, keep_last: int,
    chunk: int, groups: int, num_warps: int,
) -> None:  # fmt: skip
    """Fill ``chosen`` with what ``topk_select`` returns, for long lists of which few are taken.

    Five launches: group maxima, the bound that ``K`` of them reach, count and collection of what reaches it too, exact
    selection among that. With as many groups as twice ``K``, about 1.4 ``K`` entries of unordered lists pass.

    Args:
        scores: ``[B, H, N]``.
        valid: ``[B]``, contiguous.
        chosen: to be written.
        keep_first: leading entries always taken.
        keep_last: trailing entries always taken.
        chunk: entries a program collects from, a power of two up to 32,768.
        groups: strided groups of a list, a power of two from 512 to 32,768, at least ``K`` for a useful bound.
        num_warps: warps of the programs that search.
    """
    batch, heads, size = scores.shape
    lists, chunks, width = batch * heads, triton.cdiv(size, chunk), chosen.width
    maxima = torch.empty(lists, groups, dtype=torch.int32, device=scores.device)
    bound = torch.empty(lists, dtype=torch.int32, device=scores.device)
    passed = torch.empty(lists, chunks, dtype=torch.int32, device=scores.device)
    entries, keys = (torch.empty(lists, size, dtype=torch.int32, device=scores.device) for _ in range(2))
    kept = (keep_first, keep_last)
    list_of = (*scores.stride(), heads, size)
    group_max_kernel[(triton.cdiv(groups, _COLUMNS), lists)](
        scores,
        valid,
        maxima,
        *list_of,
        groups,
        *kept,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        num_warps=4,
        **overlap_settings(True, scores.device),
    )
    threads = min(32 * num_warps, groups // VECTOR)
    bound_kernel[(lists,)](
        maxima, valid, chosen.row_k, bound, heads, size, width, *kept,
        GROUPS=groups, THREADS=threads, VECTOR=VECTOR, WARP=warp_of(groups, threads), num_warps=num_warps,
        **overlap_settings(True, scores.device),
    )  # fmt: skip
    for write in (False, True):
        sieve_kernel[(chunks, lists)](
            scores, valid, bound, passed, entries, keys, *list_of, *kept,
            WRITE=write, CHUNK=chunk, TILE=64, num_warps=min(16, max(4, chunk // 512)),
            **overlap_settings(True, scores.device),
        )  # fmt: skip
    # Twice as many groups as wanted entries let some 1.4 times those pass.
    block = groups
    sieved_select_kernel[(lists,)](
        valid, chosen.row_k, bound, passed, entries, keys, chosen.indices, chosen.counts, chosen.heads,
        *chosen.indices.stride()[:2], heads, size, width, chunks, *kept,
        BLOCK=block, TILE=min(block, 8 * threads), THREADS=threads, VECTOR=VECTOR, WARP=warp_of(block, threads),
        num_warps=num_warps, **overlap_settings(True, scores.device),
    )  # fmt: skip
