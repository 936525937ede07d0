"""Sparse decode attention as a Triton kernel: programs share the lists' tokens, the last of a list merges its parts."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.layout import needs_upcast
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch, choose_launch
from longdecode.kernels.sparse_decode_attention.naive import check_scores, check_shapes
from longdecode.kernels.sparse_decode_attention.tiles import attend_tiles, listed_tokens, load_blocks, load_queries
from longdecode.kernels.split_kv import (
    LOG2E,
    arrival_counters,
    empty_outputs,
    finish_part,
    merge_partials,
    merge_parts,
    merge_tile,
    new_partials,
)


@triton.jit
def tiles_of_lists(
    p_counts, p_lengths, count_batch, count_list, capacity, width, lists, all_lists,
    BLOCK_SIZE: tl.constexpr, UNIT_TOKENS: tl.constexpr, BLOCK_LISTS: tl.constexpr, LIST_COST: tl.constexpr,
):  # fmt: skip
    """Return counts, lengths, tokens and tiles to be dealt out, of all lists, ``[BLOCK_LISTS]`` each."""
    o_list = tl.arange(0, BLOCK_LISTS)
    known = o_list < all_lists
    o_count = (o_list // lists).to(tl.int64) * count_batch + (o_list % lists) * count_list
    b_count = tl.load(p_counts + o_count, mask=known, other=0)
    b_length = tl.load(p_lengths + o_list // lists, mask=known, other=0)
    b_length = tl.maximum(tl.minimum(b_length, capacity), 0).to(tl.int32)
    b_listed = listed_tokens(b_count, b_length, width, BLOCK_SIZE)
    b_tiles = tl.where(known, tl.maximum(tl.cdiv(b_listed, UNIT_TOKENS), 1) + LIST_COST, 0)
    return b_count, b_length, b_listed, b_tiles


@triton.jit
def parts_of_list(begin, end, tiles, workers):
    """Return the first program that leaves a part of a list of tiles ``begin`` to ``end``, and how many do."""
    # Tile t belongs to the last program whose share begins at or before it.
    i_first = ((begin + 1) * workers - 1) // tiles
    return i_first, (end * workers - 1) // tiles - i_first + 1


@triton.jit
def merge_shares_kernel(
    p_acc, p_top, p_total, p_counts, p_lengths, p_out, p_lse,
    count_batch, count_list, capacity, width, lists, all_lists,
    BLOCK_SIZE: tl.constexpr, UNIT_TOKENS: tl.constexpr, BLOCK_LISTS: tl.constexpr, LIST_COST: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, MERGE_PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Join the parts that programs of a ``BALANCED`` launch left: as ``merge_parts_kernel``; grid ``(lists, R)``.

    A list of one part is finished already. Moves twice ``parts * R * (D + 2)`` float32.
    """
    let_next_start(PDL)
    wait_for_earlier(PDL)
    i_list = tl.program_id(0)
    o_list = tl.arange(0, BLOCK_LISTS)
    _, _, _, b_tiles = tiles_of_lists(
        p_counts, p_lengths, count_batch, count_list, capacity, width, lists, all_lists,
        BLOCK_SIZE, UNIT_TOKENS, BLOCK_LISTS, LIST_COST,
    )  # fmt: skip
    tiles = tl.sum(b_tiles, 0)
    begin = tl.sum(tl.where(o_list < i_list, b_tiles, 0), 0)
    end = tl.sum(tl.where(o_list <= i_list, b_tiles, 0), 0)
    i_first, parts = parts_of_list(begin, end, tiles, tl.minimum(tiles, SPLITS))
    if parts > 1:
        merge_parts(
            p_acc, p_top, p_total, p_out, p_lse, i_list.to(tl.int64), i_first + i_list, parts, tl.program_id(1),
            ROWS, DIM, BLOCK_DIM, 1, MERGE_PARTS,
        )  # fmt: skip


@triton.jit
def sparse_decode_attention_kernel(
    p_q, p_k, p_v, p_indices, p_counts, p_lengths, p_limits, p_row_mask, p_bias, p_tokens_read, p_scores, p_score_rows,
    p_k_scale, p_v_scale, p_acc, p_top, p_total, p_counters, p_out, p_lse,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, v_batch, v_head, index_batch, index_list, index_slot,
    count_batch, count_list, mask_batch, mask_list, mask_row, mask_entry, bias_batch, bias_list, bias_token, read_batch,
    score_batch, score_row, score_entry,
    scale_log2, capacity, width, lists, lists_per_kv_head, all_lists,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr, V_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, BLOCK_LISTS: tl.constexpr,
    SPLITS: tl.constexpr, BALANCED: tl.constexpr, FUSED: tl.constexpr, MERGE_ROWS: tl.constexpr,
    MERGE_PARTS: tl.constexpr,
    LIST_COST: tl.constexpr, SCORE_BLOCK: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Parts of index lists: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``, then joined.

    ``i`` runs over the part's share of ``{i : i // BLOCK_SIZE in list, i < length}``, or of ``{i : i < length}`` where
    the count is -1, and ``s_i = log2(e) * (scale * q . k_i + bias_i)``. The queries of the heads that a list serves are
    its rows; each reads what its limit and its mask leave of that (``rows_read``). Programs share out tiles of
    ``BLOCK_TOKENS`` slots:

    - otherwise than ``BALANCED``, grid ``(SPLITS * row tiles, Hs, B)``: program ``s`` takes tiles ``s, s + SPLITS,
      ...`` of its list, so that where it begins does not wait for the count;
    - ``BALANCED``, grid ``(SPLITS * row tiles,)``: the tiles of all lists, one list after the other and at least one
      a list, are cut into ``SPLITS`` (or as many as there are tiles) contiguous shares, equal within one tile; each
      list ends in ``LIST_COST`` tiles that hold nothing, for the time that a program needs to change lists. A program
      walks the lists that its share overlaps and leaves a part for each in slot ``program + list``, which no other
      pair has and which keeps the parts of a list together.

    The last program of a list to finish joins its parts (``finish_part``), or another launch does. With ``p_scores``,
    lists that read everything and have a row there also leave ``max_{i in block} mean_r(scale * q_r . k_i)`` of every
    block of ``SCORE_BLOCK`` tokens, from the logits at hand: no key is read twice. Shares then begin between blocks.

    Where keys and values are codes in e4m3, ``p_k_scale`` ``[B, Hkv, D]`` goes to the queries and ``p_v_scale``
    ``[B, Hkv]`` to the sums; codes become float16 in registers, which holds them exactly (float32 beside such queries).

    ``p_q`` ``[B, Hq, T, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides, or
    codes, ``p_v`` then ``[B, Hkv, N, D, V_BLOCK]``;
    ``p_indices`` ``[B, Hs, N]`` and ``p_counts`` ``[B, Hs]`` int64; ``p_lengths`` ``[B]`` integer, the largest of
    ``p_limits`` ``[B, T]`` int64 where there are; ``p_row_mask`` ``[B, Hs, T, N]`` uint8 or None;
    ``p_bias`` ``[B, Hs, S]`` float32 or None; ``p_tokens_read`` ``[B]`` int64 or None; ``p_scores`` ``[B, R, P]``
    float32 and
    ``p_score_rows`` ``[Hs]`` int64, or None; partials as in ``Partials``; ``p_out`` and ``p_lse`` contiguous. Sums run
    in float32. Moves ``2 * D`` elements of cache and, with a bias, one float32 for each token read, ``sum(counts)``
    indices, one float32 a scored block, and twice ``parts * R * (D + 2)`` float32 through L2.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog); equal contiguous shares of
    all work: Osama et al. 2023, Stream-K (arXiv 2301.03598); Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3:
    attention over selected pages; LycheeDecode (arXiv 2602.04541): heads that read everything beside heads that do not.
    """
    wait_for_earlier(PDL)
    i_program = tl.program_id(0) % SPLITS
    i_row = tl.program_id(0) // SPLITS * BLOCK_ROWS
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    p_counters += tl.program_id(0) // SPLITS * all_lists
    if BALANCED:
        # Several where a scored block is larger than a tile, so that no two programs meet in one.
        UNIT: tl.constexpr = SCORE_BLOCK // BLOCK_TOKENS if SCORE_BLOCK > BLOCK_TOKENS else 1
        o_list = tl.arange(0, BLOCK_LISTS)
        b_count, b_length, b_listed, b_tiles = tiles_of_lists(
            p_counts, p_lengths, count_batch, count_list, capacity, width, lists, all_lists,
            BLOCK_SIZE, BLOCK_TOKENS * UNIT, BLOCK_LISTS, LIST_COST,
        )  # fmt: skip
        if p_scores is not None:
            b_score_row = tl.load(p_score_rows + o_list % lists, mask=(o_list < all_lists) & (b_count < 0), other=-1)
        b_end = tl.cumsum(b_tiles, 0)
        tiles = tl.sum(b_tiles, 0)
        workers = tl.minimum(tiles, SPLITS)
        i_tile = tl.minimum(i_program, workers) * tiles // workers
        last = tl.minimum(i_program + 1, workers) * tiles // workers
        while i_tile < last:
            i_list = tl.sum((b_end <= i_tile).to(tl.int32), 0)
            here = o_list == i_list
            end = tl.sum(tl.where(here, b_end, 0), 0)
            begin = end - tl.sum(tl.where(here, b_tiles, 0), 0)
            listed = tl.sum(tl.where(here, b_listed, 0), 0)
            length = tl.sum(tl.where(here, b_length, 0), 0)
            everything = tl.sum((here & (b_count < 0)).to(tl.int32), 0) > 0
            until = tl.minimum(last, end)
            i_batch = (i_list // lists).to(tl.int64)
            i_in_row = (i_list % lists).to(tl.int64)
            i_head = i_in_row // lists_per_kv_head
            p_list = p_indices + i_batch * index_batch + i_in_row * index_list
            first = (i_tile - begin) * UNIT
            stop = tl.minimum((until - begin) * UNIT, tl.cdiv(listed, BLOCK_TOKENS))
            i_score = tl.sum(tl.where(here, b_score_row, 0), 0) if p_scores is not None else -1
            b_block = load_blocks(p_list, index_slot, first, width, BLOCK_SIZE, BLOCK_TOKENS)
            i_kv = i_batch * (lists // lists_per_kv_head) + i_head
            b_q = load_queries(
                p_q, q_batch, q_head, q_row, q_dim, i_batch, i_in_row, o_row, QUERIES, ROWS, DIM, BLOCK_DIM, UPCAST,
                None if p_k_scale is None else p_k_scale + i_kv * DIM,
            )  # fmt: skip
            b_top, b_total, b_acc = attend_tiles(
                b_q, b_block, p_k + i_batch * k_batch + i_head * k_head, p_v + i_batch * v_batch + i_head * v_head,
                p_list,
                None if p_bias is None else p_bias + i_batch * bias_batch + i_in_row * bias_list,
                None if p_tokens_read is None else p_tokens_read + i_batch * read_batch,
                first, stop, 1, everything, listed, length, width, index_slot, bias_token, scale_log2,
                None if p_scores is None else p_scores + i_batch * score_batch + i_score * score_row,
                i_score >= 0, score_entry,
                None if p_limits is None else p_limits + i_batch * QUERIES,
                None if p_row_mask is None else p_row_mask + i_batch * mask_batch + i_in_row * mask_list,
                mask_row, mask_entry, o_row, None if p_v_scale is None else p_v_scale + i_kv,
                K_TOKEN, K_DIM, V_TOKEN, V_DIM, V_BLOCK,
                BLOCK_SIZE, DIM, BLOCK_DIM, BLOCK_ROWS, BLOCK_TOKENS, QUERIES, ROWS, SCORE_BLOCK,
            )  # fmt: skip
            i_first, parts = parts_of_list(begin, end, tiles, workers)
            if until == last:
                let_next_start(PDL)
            finish_part(
                p_acc, p_top, p_total, p_counters + i_list, p_out, p_lse, b_acc, b_top, b_total,
                i_list.to(tl.int64), i_program + i_list, i_first + i_list, parts, i_row, ROWS,
                DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, FUSED,
            )  # fmt: skip
            i_tile = until
    else:
        i_batch = tl.program_id(2).to(tl.int64)
        i_in_row = tl.program_id(1).to(tl.int64)
        i_list = i_batch * lists + i_in_row
        i_head = i_in_row // lists_per_kv_head
        # Where a program begins and how wide the lists are is known at once: the first block numbers are loaded beside
        # the count, not after it.
        p_list = p_indices + i_batch * index_batch + i_in_row * index_list
        b_block = load_blocks(p_list, index_slot, i_program, width, BLOCK_SIZE, BLOCK_TOKENS)
        length = tl.maximum(tl.minimum(tl.load(p_lengths + i_batch), capacity), 0).to(tl.int32)
        count = tl.load(p_counts + i_batch * count_batch + i_in_row * count_list)
        listed = listed_tokens(count, length, width, BLOCK_SIZE)
        i_score = tl.load(p_score_rows + i_in_row) if p_scores is not None else -1
        i_kv = i_batch * (lists // lists_per_kv_head) + i_head
        b_q = load_queries(
            p_q, q_batch, q_head, q_row, q_dim, i_batch, i_in_row, o_row, QUERIES, ROWS, DIM, BLOCK_DIM, UPCAST,
            None if p_k_scale is None else p_k_scale + i_kv * DIM,
        )  # fmt: skip
        b_top, b_total, b_acc = attend_tiles(
            b_q, b_block, p_k + i_batch * k_batch + i_head * k_head, p_v + i_batch * v_batch + i_head * v_head, p_list,
            None if p_bias is None else p_bias + i_batch * bias_batch + i_in_row * bias_list,
            None if p_tokens_read is None else p_tokens_read + i_batch * read_batch,
            i_program, tl.cdiv(listed, BLOCK_TOKENS), SPLITS, count < 0, listed, length, width,
            index_slot, bias_token, scale_log2,
            None if p_scores is None else p_scores + i_batch * score_batch + i_score * score_row,
            (i_score >= 0) & (count < 0), score_entry,
            None if p_limits is None else p_limits + i_batch * QUERIES,
            None if p_row_mask is None else p_row_mask + i_batch * mask_batch + i_in_row * mask_list,
            mask_row, mask_entry, o_row, None if p_v_scale is None else p_v_scale + i_kv,
            K_TOKEN, K_DIM, V_TOKEN, V_DIM, V_BLOCK,
            BLOCK_SIZE, DIM, BLOCK_DIM, BLOCK_ROWS, BLOCK_TOKENS, QUERIES, ROWS, SCORE_BLOCK,
        )  # fmt: skip
        let_next_start(PDL)
        finish_part(
            p_acc, p_top, p_total, p_counters + i_list, p_out, p_lse, b_acc, b_top, b_total,
            i_list, i_list * SPLITS + i_program, i_list * SPLITS, SPLITS, i_row, ROWS,
            DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, FUSED,
        )  # fmt: skip


def sparse_decode_attention_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    kv_lengths: Tensor,
    row_mask: Tensor | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    scores: Tensor | None = None,
    score_rows: Tensor | None = None,
    score_block: int = 1,
    uneven: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    launch: SparseLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention over listed blocks as in ``naive.sparse_decode_attention``; a CUDA graph can capture it.

    Launches on one device must follow one another (see ``split_kv.arrival_counters``), and one must have run before
    the first capture.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides; fastest where ``D`` is contiguous.
        v: ``[B, Hkv, S, D]``, likewise.
        indices: ``[B, Hs, N]`` int64 block numbers, any strides; entries past the count may hold anything.
        counts: ``[B, Hs]`` int64, at most ``N``; -1 reads the whole row.
        block_size: tokens in a block, 1 or more.
        kv_lengths: ``[B]`` integers or ``[B, T]`` int64; a length over ``S`` counts as ``S``.
        row_mask: ``[B, Hs, T, N]`` bool, any strides, row ``t`` reads list entry ``n``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        bias: ``[B, Hs, S]`` float32, any strides, added to the scaled scores (natural logarithm).
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over lists, are added.
        scores: ``[B, R, ceil(S / score_block)]`` float32, any strides, filled by lists that read everything.
        score_rows: ``[Hs]`` int64, the row of ``scores`` that each list fills, no two the same; -1 fills none.
        score_block: tokens that one score stands for, a power of two.
        uneven: lists may differ much in length (some read everything): share them out evenly. A hint: the result is
            the same without it.
        k_scale: ``[B, Hkv, D]`` float32, contiguous, where keys and values are e4m3 codes as in ``Fp8Layer``: ``v`` is
            ``[B, Hkv, N, D, V]``, contiguous but for its lists; ``V`` divides ``block_size`` and a tile.
        v_scale: ``[B, Hkv]`` float32, contiguous, likewise.
        launch: how to run; ``choose_launch``'s when left out.

    Returns:
        ``out`` ``[B, Hq, T, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, T]`` in float32.

    Raises:
        ValueError: a shape does not fit, the dtypes differ, scores do not fit the shapes or the launch, or a balanced
            launch is given more tiles than it can number.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, capacity, lists, width = k.shape[1], k.shape[2], indices.shape[1], indices.shape[2]
    check_shapes(q, kv_heads, indices, kv_lengths, row_mask)
    wanted = q.dtype if k_scale is None else torch.float8_e4m3fn
    if not wanted == k.dtype == v.dtype:
        raise ValueError(f"keys and values in {wanted} are needed, got {k.dtype} and {v.dtype}")
    v_block = 1 if k_scale is None else v.shape[4]
    v_token, v_dim = (v.stride(2), v.stride(3)) if v_block == 1 else (dim, v_block)
    rows, all_lists = heads // lists * queries, batch * lists
    limits = kv_lengths.contiguous() if kv_lengths.dim() == 2 and queries > 1 else None
    longest = kv_lengths.view(batch) if limits is None else limits.amax(dim=1)
    check_scores(scores, score_rows, score_block, (batch, lists, capacity), queries)
    scored = 0 if scores is None else score_block
    launch = launch or choose_launch(
        all_lists,
        rows,
        dim,
        width * block_size,
        capacity,
        q.dtype,
        q.device,
        uneven=uneven,
        score_block=scored,
        block=queries > 1 or row_mask is not None,
        codes=k_scale is not None,
    )
    if scores is not None:
        _refuse_scores(scores, score_block, rows, launch)
    most_tiles = all_lists * (triton.cdiv(capacity, launch.tokens) + launch.list_cost)
    if launch.balanced and most_tiles * launch.splits >= 1 << 31:
        raise ValueError(f"{all_lists} lists of up to {capacity} tokens are more than a balanced launch can share out")
    row_tiles, padded = triton.cdiv(rows, launch.rows), max(16, triton.next_power_of_2(dim))
    alone = launch.splits == 1 and not launch.balanced
    slots = launch.splits + all_lists if launch.balanced else 0 if alone else launch.splits * all_lists
    partials = new_partials(slots, rows, dim, q.device)
    counters = arrival_counters(all_lists * row_tiles, q.device) if launch.fused_merge and not alone else None
    out, lse = empty_outputs(q)
    merge_rows, merge_some = merge_tile(min(rows, launch.rows), launch.splits, padded, launch.num_warps)
    grid = (launch.splits * row_tiles,) if launch.balanced else (launch.splits * row_tiles, lists, batch)
    with torch.cuda.device_of(q):
        sparse_decode_attention_kernel[grid](
            q, k, v, indices, counts, longest.contiguous(), limits,
            None if row_mask is None else row_mask.view(torch.uint8), bias, kv_tokens_read,
            scores, None if score_rows is None else score_rows.contiguous(), k_scale, v_scale,
            *partials, lse if counters is None else counters, out, lse,
            q.stride(0), q.stride(1), q.stride(2) if queries > 1 else 1, q.stride(3),
            k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            *indices.stride(), *counts.stride(), *((1, 1, 1, 1) if row_mask is None else row_mask.stride()),
            *((0, 0, 0) if bias is None else bias.stride()),
            0 if kv_tokens_read is None else kv_tokens_read.stride(0),
            *((0, 0, 0) if scores is None else scores.stride()),
            LOG2E * (dim**-0.5 if scale is None else scale), capacity, width, lists, lists // kv_heads,
            all_lists,
            K_TOKEN=k.stride(2), K_DIM=k.stride(3), V_TOKEN=v_token, V_DIM=v_dim, V_BLOCK=v_block,
            BLOCK_SIZE=block_size,
            DIM=dim, BLOCK_DIM=padded, BLOCK_ROWS=launch.rows, BLOCK_TOKENS=launch.tokens,
            QUERIES=queries, ROWS=rows, BLOCK_LISTS=triton.next_power_of_2(all_lists), SPLITS=launch.splits,
            BALANCED=launch.balanced,
            FUSED=launch.fused_merge, MERGE_ROWS=merge_rows, MERGE_PARTS=merge_some,
            LIST_COST=launch.list_cost, SCORE_BLOCK=scored,
            UPCAST=needs_upcast(q),
            num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=launch.registers,
            **overlap_settings(True, q.device),
        )  # fmt: skip
        if launch.balanced and not launch.fused_merge:
            at_once = min(256, triton.next_power_of_2(launch.splits))
            merge_shares_kernel[(all_lists, rows)](
                *partials, counts, longest.contiguous(), out, lse, *counts.stride(), capacity, width, lists, all_lists,
                BLOCK_SIZE=block_size, UNIT_TOKENS=max(launch.tokens, scored), SPLITS=launch.splits, ROWS=rows, DIM=dim,
                BLOCK_LISTS=triton.next_power_of_2(all_lists), LIST_COST=launch.list_cost, BLOCK_DIM=padded,
                MERGE_PARTS=at_once, num_warps=max(4, min(16, at_once * padded // 2048)),
                **overlap_settings(True, q.device),
            )  # fmt: skip
        elif not launch.fused_merge and not alone:
            merge_partials(partials, launch.splits, out, lse)
    return out, lse


def _refuse_scores(scores: Tensor, score_block: int, rows: int, launch: SparseLaunch) -> None:
    """Raise where a launch cannot leave these scores."""
    if scores.dtype != torch.float32:
        raise ValueError(f"scores are written in float32, got {scores.dtype}")
    if score_block & (score_block - 1):
        raise ValueError(f"score_block = {score_block}; a power of two is needed")
    if rows > launch.rows:
        raise ValueError(f"a list of {rows} query heads in tiles of {launch.rows}: their mean is in no one program")
    if score_block > launch.tokens and not launch.balanced:
        raise ValueError(f"score_block = {score_block} in tiles of {launch.tokens}: only a balanced launch joins tiles")
