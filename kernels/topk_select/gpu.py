"""Top-k selection as Triton kernels: one program a list where it fits in registers, a sieve where not."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.topk_select import naive
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
from longdecode.kernels.topk_select.naive import check_places, check_request
from longdecode.kernels.topk_select.search import VECTOR, bisect
from longdecode.kernels.topk_select.sieve import sieve_select, warp_of

_LONGEST = 32_768


@dataclass(frozen=True, slots=True)
class TopkLaunch:
    """Launch constants: warps of a program, entries it takes at once, and which of two ways a list goes.

    Without ``groups`` one program holds a whole list, of at most 32,768 entries, and scans it by ``chunk`` to write.
    ``groups``: a sieve by the maxima of so many groups.
    """

    num_warps: int
    chunk: int
    groups: int = 0


def choose_launch(size: int, width: int) -> TopkLaunch | None:
    """Choose constants for ``width`` of ``size`` entries; ``None`` where torch serves: more than the sieve can hold."""
    if size <= 8192:
        return TopkLaunch(min(16, max(4, triton.next_power_of_2(size) // 512)), 8192)
    groups = max(2048, 2 * triton.next_power_of_2(width))
    if groups > _LONGEST:
        return None
    return TopkLaunch(8 if groups <= 4096 else 16, 2048, groups=groups)


@triton.jit
def topk_select_kernel(
    p_scores, p_valid, p_row_k, p_indices, p_counts, p_heads, index_batch, index_list,
    score_batch, score_head, score_entry, heads, size, width, keep_first, keep_last,
    BLOCK: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, WARP: tl.constexpr, GROUPS: tl.constexpr,
    TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``{i : s_i among the width largest of s_0 ... s_{valid-1}}`` of one list held in registers; grid ``(B * H,)``.

    Bisects for the largest key ``t`` with ``#{key >= t} >= width``, between a lower bound and the largest key: each
    step counts at three thresholds at once, packed first in 10 bits a count within a thread, then in 21 bits a count
    across threads, and the search ends early where a count is exact. The lower bound is the smallest maximum of
    ``GROUPS`` strided groups, of the threads' own entries where those are as many: as long as no fewer groups hold
    entries than are to be taken, so many entries reach it.

    ``p_scores`` ``[B, H, N]`` float32, float16 or bfloat16; ``p_valid`` ``[B]`` integer; ``p_row_k`` ``[B]`` integer,
    a row's own number instead of ``width``, or None; ``p_indices``, ``p_counts`` and ``p_heads`` as in ``Chosen``.
    Moves ``N`` scores in and ``width`` indices out.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_list = tl.program_id(0).to(tl.int64)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    o_entry = tl.arange(0, BLOCK)
    p_scores += (i_list // heads) * score_batch + (i_list % heads) * score_head
    b_keys = load_keys(p_scores, score_entry, o_entry, size, first, last)
    b_tile = tl.reshape(b_keys, [BLOCK // (THREADS * VECTOR), THREADS, VECTOR])

    rivals = last - first
    wanted = wanted_of(p_row_k, i_list // heads, width)
    need = tl.minimum(wanted - first - (valid - last), rivals)
    if GROUPS == THREADS:
        b_bound = tl.max(tl.max(b_tile, 2), 0)
        few = valid // VECTOR < wanted
    else:
        b_bound = tl.max(tl.reshape(b_keys, [BLOCK // GROUPS, GROUPS]), 0)
        few = wanted > GROUPS
    high = tl.max(b_bound).to(tl.int64) + 1
    low = tl.min(tl.where(b_bound == NO_KEY, KEPT_KEY, b_bound)).to(tl.int64)
    low = tl.where(need == 0, KEPT_KEY, tl.where(few | (need == rivals), LEAST_KEY, low))
    reached = tl.where((need == rivals) | (need == 0), need, -1)
    low, reached, over = bisect(b_tile, need, 0, low, high, reached, THREADS, WARP)

    exact = reached == need
    threshold = low.to(tl.int32)
    count = tl.minimum(valid, wanted)
    above_before, tied_before = 0, 0
    p_indices = chosen_list(p_indices, p_heads, index_batch, index_list, i_list, heads)
    for i_tile in tl.static_range(0, BLOCK, TILE):
        o_tile = i_tile + tl.arange(0, TILE)
        if TILE < BLOCK:
            # Read again, because the scan's temporaries would not fit in registers beside the whole list.
            b_keys = load_keys(p_scores, score_entry, o_tile, size, first, last)
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
    store_count(p_counts, i_list, count)


def topk_select_gpu(
    scores: Tensor,
    k: int,
    valid: Tensor,
    *,
    keep_first: int = 0,
    keep_last: int = 0,
    row_k: Tensor | None = None,
    launch: TopkLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Select the top k as in ``naive.topk_select``, without a sort and without leaving the device.

    Args:
        scores: ``[B, H, N]`` float32, float16 or bfloat16, any strides, ``N`` below 2^30.
        k: how many to take.
        valid: ``[B]`` integers, the leading entries that count.
        keep_first: leading valid entries that are always taken, inside ``k``.
        keep_last: trailing valid entries, likewise.
        row_k: ``[B]`` integers, how many to take in each row, at most ``k``; ``k`` where left out.
        launch: launch constants; from the shapes when left out. The result does not depend on them.

    Returns:
        ``indices`` ``[B, H, min(k, N)]`` and ``counts`` ``[B, H]``, int64.

    Raises:
        ValueError: ``k`` is below 1 or below ``keep_first + keep_last``, ``valid`` is not one number a row, or a list
            is too long for the launch.
    """
    check_request(scores, k, valid, keep_first, keep_last, row_k)
    batch, heads, size = scores.shape
    width = min(k, size)
    launch = launch or choose_launch(size, width)
    if launch is None:
        return naive.topk_select(scores, k, valid, keep_first=keep_first, keep_last=keep_last, row_k=row_k)
    indices = torch.empty(batch, heads, width, dtype=torch.int64, device=scores.device)
    counts = torch.empty(batch, heads, dtype=torch.int64, device=scores.device)
    _select(scores, valid, Chosen(indices, width, counts, row_k=row_k), keep_first, keep_last, launch)
    return indices, counts


def topk_select_into_gpu(
    scores: Tensor,
    k: int,
    valid: Tensor,
    indices: Tensor,
    heads: Tensor,
    *,
    keep_first: int = 0,
    keep_last: int = 0,
    launch: TopkLaunch | None = None,
) -> None:
    """Select the top k into given lists as in ``naive.topk_select_into``, in the same launches.

    Args:
        scores: ``[B, R, N]`` as in ``topk_select_gpu``, like ``k``, ``valid`` and what is kept.
        indices: ``[B, H, K]`` int64 whose last dimension is contiguous.
        heads: ``[R]`` int64, no two the same.
        launch: launch constants; from the shapes when left out. The result does not depend on them.

    Raises:
        ValueError: as ``topk_select_gpu``, and where ``indices`` or ``heads`` do not fit.
    """
    check_request(scores, k, valid, keep_first, keep_last)
    check_places(scores, k, indices, heads)
    if indices.stride(2) != 1 and indices.shape[2] > 1:
        raise ValueError(f"neighbouring indices are {indices.stride(2)} apart; they must be contiguous")
    chosen = Chosen(indices, min(k, scores.shape[2]), heads=heads.contiguous())
    launch = launch or choose_launch(scores.shape[2], chosen.width)
    if launch is None:
        naive.topk_select_into(scores, k, valid, indices, heads, keep_first=keep_first, keep_last=keep_last)
        return
    _select(scores, valid, chosen, keep_first, keep_last, launch)


def _select(scores: Tensor, valid: Tensor, chosen: Chosen, keep_first: int, keep_last: int, launch: TopkLaunch) -> None:
    """Launch the kernel that fills ``chosen``."""
    batch, heads, size = scores.shape
    width = chosen.width
    if not launch.groups and size > _LONGEST:
        raise ValueError(f"{size} entries do not fit one program, which holds {_LONGEST} at most")
    valid = valid.contiguous()
    filled = (scores, valid, chosen, keep_first, keep_last)
    with torch.cuda.device_of(scores):
        if launch.groups:
            sieve_select(*filled, launch.chunk, launch.groups, launch.num_warps)
            return
        block = max(128, triton.next_power_of_2(size))
        threads = min(32 * launch.num_warps, block // VECTOR)
        groups = threads if threads >= width else max(VECTOR * threads, triton.next_power_of_2(width))
        topk_select_kernel[(batch * heads,)](
            scores, valid, chosen.row_k, chosen.indices, chosen.counts, chosen.heads, *chosen.indices.stride()[:2],
            *scores.stride(), heads, size, width, keep_first, keep_last,
            BLOCK=block, THREADS=threads, VECTOR=VECTOR, WARP=warp_of(block, threads), GROUPS=groups,
            TILE=min(block, launch.chunk), num_warps=launch.num_warps,
            **overlap_settings(True, scores.device),
        )  # fmt: skip
