"""Sparse decode attention as a Triton kernel: programs share the lists' tokens, the last of a list merges its parts."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch, choose_launch
from longdecode.kernels.sparse_decode_attention.naive import check_scores
from longdecode.kernels.sparse_decode_attention.scores import store_scores
from longdecode.kernels.split_kv import (
    LOG2E,
    arrival_counters,
    finish_part,
    finish_part_in_groups,
    merge_partials,
    merge_tile,
    new_partials,
    softmax_step,
    tile_scores,
)

_LOG2E = tl.constexpr(LOG2E)


@triton.jit
def load_queries(
    p_q, q_batch, q_head, q_dim, i_batch, i_list, o_row,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The query heads ``[R, D]`` that a list serves."""
    o_dim = tl.arange(0, BLOCK_DIM)
    o_q = (i_batch * q_batch + (i_list * ROWS + o_row) * q_head)[:, None] + (o_dim * q_dim)[None, :]
    b_q = tl.load(p_q + o_q, mask=(o_row < ROWS)[:, None] & (o_dim < DIM)[None, :], other=0.0)
    return b_q.to(tl.float32) if UPCAST else b_q


@triton.jit
def load_blocks(p_indices, index_slot, i_tile, width, BLOCK_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """The block number of each slot of a tile, ``[BLOCK_TOKENS]`` int64.

    Only the width of the lists bounds the load, so that it need not wait for a count; what lies past the count is
    loaded and not used, and past the width it is 0.
    """
    o_slot = tl.arange(0, BLOCK_TOKENS)
    if BLOCK_TOKENS % BLOCK_SIZE == 0:
        o_block = i_tile * (BLOCK_TOKENS // BLOCK_SIZE) + o_slot // BLOCK_SIZE
    else:
        o_block = (i_tile * BLOCK_TOKENS + o_slot) // BLOCK_SIZE
    return tl.load(p_indices + o_block.to(tl.int64) * index_slot, mask=o_block < width, other=0)


@triton.jit
def listed_tokens(count, length, width, BLOCK_SIZE: tl.constexpr):
    """Token slots of a list: all of the row's for a count of -1, those of its valid blocks otherwise."""
    return tl.where(count < 0, length, tl.minimum(count, width) * BLOCK_SIZE).to(tl.int32)


@triton.jit
def attend_tiles(
    b_q, b_block, p_k, p_v, p_indices, p_bias, p_tokens_read, first, stop, step, everything, listed, length, width,
    index_slot, bias_token, scale_log2, p_scores, scored, score_entry,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, ROWS: tl.constexpr, SCORE_BLOCK: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Softmax state over the tiles ``first, first + step, ...`` before ``stop`` of one list.

    A tile is ``BLOCK_TOKENS`` slots of the list: ``BLOCK_TOKENS / BLOCK_SIZE`` listed blocks, or that many tokens of
    the row where the list is ``everything``. Block numbers are loaded a tile ahead, into registers; ``b_block`` are
    those of the first tile. Pointers are those of the list's KV head, indices and bias; the tokens read are added to
    ``p_tokens_read``. Where the list is ``scored``, which takes ``everything`` and, for blocks larger than a tile, a
    step of 1, the scores of its blocks go to ``p_scores``.
    """
    o_dim = tl.arange(0, BLOCK_DIM)
    b_top = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_ROWS, BLOCK_TOKENS if BLOCK_ROWS == 16 else 1], dtype=tl.float32)
    b_acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    b_read = tl.zeros([BLOCK_TOKENS], dtype=tl.int32)
    if p_scores is not None:
        b_best = tl.full([BLOCK_TOKENS], float("-inf"), dtype=tl.float32)
    for i_tile in range(first, stop, step):
        o_slot = i_tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
        # Slots within a tile are known when compiling, unless a block may straddle two tiles.
        o_inside = (tl.arange(0, BLOCK_TOKENS) if BLOCK_TOKENS % BLOCK_SIZE == 0 else o_slot) % BLOCK_SIZE
        b_token = tl.where(everything, o_slot, b_block.to(tl.int32) * BLOCK_SIZE + o_inside)
        # One number says which token and, by its sign, whether: it crosses to the layout of the tile only once.
        b_token = tl.where((o_slot < listed) & (b_token < length), b_token, -1)
        b_block = load_blocks(p_indices, index_slot, i_tile + step, width, BLOCK_SIZE, BLOCK_TOKENS)
        b_read += (b_token >= 0).to(tl.int32)
        b_tokens = b_token[:, None].to(tl.int64)
        loaded = (b_tokens >= 0) & (o_dim < DIM)[None, :]
        b_k = tl.load(p_k + (b_tokens * K_TOKEN + o_dim[None, :] * K_DIM), mask=loaded, other=0.0)
        b_v = tl.load(p_v + (b_tokens * V_TOKEN + o_dim[None, :] * V_DIM), mask=loaded, other=0.0)
        if UPCAST:
            b_k = b_k.to(tl.float32)
            b_v = b_v.to(tl.float32)
        b_scores = tile_scores(b_q, b_k, scale_log2)
        if p_scores is not None:  # noqa: SIM102 - this is known when compiling, what follows is not
            if scored:
                b_best = store_scores(
                    p_scores, score_entry, b_scores, b_token, b_best, i_tile, i_tile + step >= stop, length,
                    ROWS, SCORE_BLOCK, BLOCK_TOKENS,
                )  # fmt: skip
        if p_bias is not None:
            b_bias = tl.load(p_bias + b_token.to(tl.int64) * bias_token, mask=b_token >= 0, other=0.0)
            b_scores += (b_bias * _LOG2E)[None, :]
        b_scores = tl.where((b_token >= 0)[None, :], b_scores, float("-inf"))
        b_top, b_total, b_acc = softmax_step(b_scores, b_v, b_top, b_total, b_acc)
    if p_tokens_read is not None:
        tl.atomic_add(p_tokens_read, tl.sum(b_read, 0).to(tl.int64), sem="relaxed")
    return b_top, tl.sum(b_total, 1), b_acc


@triton.jit
def sparse_decode_attention_kernel(
    p_q, p_k, p_v, p_indices, p_counts, p_lengths, p_bias, p_tokens_read, p_scores, p_score_rows,
    p_acc, p_top, p_total, p_counters, p_out, p_lse,
    q_batch, q_head, q_dim, k_batch, k_head, v_batch, v_head, index_batch, index_list, index_slot,
    count_batch, count_list, bias_batch, bias_list, bias_token, read_batch, score_batch, score_row, score_entry,
    scale_log2, capacity, width, lists, lists_per_kv_head, all_lists,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK_LISTS: tl.constexpr, SPLITS: tl.constexpr,
    BALANCED: tl.constexpr, FUSED: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr,
    GROUP: tl.constexpr, LIST_COST: tl.constexpr, SCORE_BLOCK: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Parts of index lists: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``, then joined.

    ``i`` runs over the part's share of ``{i : i // BLOCK_SIZE in list, i < length}``, or of ``{i : i < length}`` where
    the count is -1, and ``s_i = log2(e) * (scale * q . k_i + bias_i)``. The query heads that a list serves are its
    rows. Tiles of ``BLOCK_TOKENS`` slots are what programs share out:

    - otherwise than ``BALANCED``, grid ``(SPLITS * row tiles, Hs, B)``: program ``s`` takes tiles ``s, s + SPLITS,
      ...`` of its list, so that where it begins does not wait for the count;
    - ``BALANCED``, grid ``(SPLITS * row tiles,)``: the tiles of all lists, one list after the other and at least one
      a list, are cut into ``SPLITS`` (or as many as there are tiles) contiguous shares, equal within one tile; each
      list ends in ``LIST_COST`` tiles that hold nothing, for the time that a program needs to change lists. A program
      walks the lists that its share overlaps and leaves a part for each in slot ``program + list``, which no other
      pair has and which keeps the parts of a list together.

    The last program of a list to finish joins its parts (``finish_part``), where there may be more than ``GROUP`` after
    the last ones of groups have joined theirs (``finish_part_in_groups``). With ``p_scores``, lists that read
    everything and have a row there also leave ``max_{i in block} mean_r(scale * q_r . k_i)`` of every block of
    ``SCORE_BLOCK`` tokens, from the logits at hand: no key is read twice. Shares then begin between such blocks.

    ``p_q`` ``[B, Hq, 1, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides;
    ``p_indices`` ``[B, Hs, N]`` and ``p_counts`` ``[B, Hs]`` int64; ``p_lengths`` ``[B]`` integer; ``p_bias``
    ``[B, Hs, S]`` float32 or None; ``p_tokens_read`` ``[B]`` int64 or None; ``p_scores`` ``[B, R, P]`` float32 and
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
    i_row_tile = tl.program_id(0) // SPLITS
    if BALANCED:
        # Behind the counters of all lists and row tiles, one a slot of this row tile.
        p_groups = p_counters + all_lists * tl.cdiv(ROWS, BLOCK_ROWS) + i_row_tile * (SPLITS + all_lists)
    p_counters += i_row_tile * all_lists
    if BALANCED:
        o_list = tl.arange(0, BLOCK_LISTS)
        known = o_list < all_lists
        o_count = (o_list // lists).to(tl.int64) * count_batch + (o_list % lists) * count_list
        b_count = tl.load(p_counts + o_count, mask=known, other=0)
        b_length = tl.load(p_lengths + o_list // lists, mask=known, other=0)
        b_length = tl.maximum(tl.minimum(b_length, capacity), 0).to(tl.int32)
        b_listed = listed_tokens(b_count, b_length, width, BLOCK_SIZE)
        # Several where a scored block is larger than a tile, so that no two programs meet in one.
        UNIT: tl.constexpr = SCORE_BLOCK // BLOCK_TOKENS if SCORE_BLOCK > BLOCK_TOKENS else 1
        b_tiles = tl.where(known, tl.maximum(tl.cdiv(b_listed, BLOCK_TOKENS * UNIT), 1) + LIST_COST, 0)
        if p_scores is not None:
            b_score_row = tl.load(p_score_rows + o_list % lists, mask=known & (b_count < 0), other=-1)
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
            b_q = load_queries(p_q, q_batch, q_head, q_dim, i_batch, i_in_row, o_row, ROWS, DIM, BLOCK_DIM, UPCAST)
            b_top, b_total, b_acc = attend_tiles(
                b_q, b_block, p_k + i_batch * k_batch + i_head * k_head, p_v + i_batch * v_batch + i_head * v_head,
                p_list,
                None if p_bias is None else p_bias + i_batch * bias_batch + i_in_row * bias_list,
                None if p_tokens_read is None else p_tokens_read + i_batch * read_batch,
                first, stop, 1, everything, listed, length, width, index_slot, bias_token, scale_log2,
                None if p_scores is None else p_scores + i_batch * score_batch + i_score * score_row,
                i_score >= 0, score_entry, K_TOKEN, K_DIM, V_TOKEN, V_DIM,
                BLOCK_SIZE, DIM, BLOCK_DIM, BLOCK_ROWS, BLOCK_TOKENS, ROWS, SCORE_BLOCK, UPCAST,
            )  # fmt: skip
            # Tile t belongs to the last program whose share begins at or before it.
            i_first = ((begin + 1) * workers - 1) // tiles
            parts = (end * workers - 1) // tiles - i_first + 1
            if SPLITS > GROUP:
                finish_part_in_groups(
                    p_acc, p_top, p_total, p_counters + i_list, p_groups, p_out, p_lse, b_acc, b_top, b_total,
                    i_list.to(tl.int64), i_program + i_list, i_first + i_list, parts, SPLITS + all_lists, i_row,
                    ROWS, DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, GROUP,
                )  # fmt: skip
            else:
                finish_part(
                    p_acc, p_top, p_total, p_counters + i_list, p_out, p_lse, b_acc, b_top, b_total,
                    i_list.to(tl.int64), i_program + i_list, i_first + i_list, parts, i_row, ROWS,
                    DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, True,
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
        b_q = load_queries(p_q, q_batch, q_head, q_dim, i_batch, i_in_row, o_row, ROWS, DIM, BLOCK_DIM, UPCAST)
        b_top, b_total, b_acc = attend_tiles(
            b_q, b_block, p_k + i_batch * k_batch + i_head * k_head, p_v + i_batch * v_batch + i_head * v_head, p_list,
            None if p_bias is None else p_bias + i_batch * bias_batch + i_in_row * bias_list,
            None if p_tokens_read is None else p_tokens_read + i_batch * read_batch,
            i_program, tl.cdiv(listed, BLOCK_TOKENS), SPLITS, count < 0, listed, length, width,
            index_slot, bias_token, scale_log2,
            None if p_scores is None else p_scores + i_batch * score_batch + i_score * score_row,
            (i_score >= 0) & (count < 0), score_entry, K_TOKEN, K_DIM, V_TOKEN, V_DIM,
            BLOCK_SIZE, DIM, BLOCK_DIM, BLOCK_ROWS, BLOCK_TOKENS, ROWS, SCORE_BLOCK, UPCAST,
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
    scale: float | None = None,
    bias: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    scores: Tensor | None = None,
    score_rows: Tensor | None = None,
    score_block: int = 1,
    uneven: bool = False,
    launch: SparseLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over listed blocks as in ``naive.sparse_decode_attention``; a CUDA graph can capture it.

    Launches on one device must follow one another (see ``split_kv.arrival_counters``), and one must have run before
    the first capture.

    Args:
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides; fastest where ``D`` is contiguous.
        v: ``[B, Hkv, S, D]``, likewise.
        indices: ``[B, Hs, N]`` int64 block numbers, any strides; entries past the count may hold anything.
        counts: ``[B, Hs]`` int64, at most ``N``; -1 reads the whole row.
        block_size: tokens in a block, 1 or more.
        kv_lengths: ``[B]`` integers; a length over ``S`` counts as ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        bias: ``[B, Hs, S]`` float32, any strides, added to the scaled scores (natural logarithm).
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over lists, are added.
        scores: ``[B, R, ceil(S / score_block)]`` float32, any strides, filled by lists that read everything.
        score_rows: ``[Hs]`` int64, the row of ``scores`` that each list fills, no two the same; -1 fills none.
        score_block: tokens that one score stands for, a power of two.
        uneven: lists may differ much in length (some read everything): share them out evenly. A hint: the result is
            the same without it.
        launch: how to run; ``choose_launch``'s when left out.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32.

    Raises:
        ValueError: ``Hs`` is neither the number of KV heads nor of query heads, there is more than one query row, the
            dtypes differ, scores do not fit the shapes or the launch, or a balanced launch is given more tiles than it
            can number.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, capacity, lists, width = k.shape[1], k.shape[2], indices.shape[1], indices.shape[2]
    if queries != 1:
        raise ValueError(f"sparse decode takes one query row, got {queries}")
    if heads % kv_heads or lists not in (kv_heads, heads):
        raise ValueError(f"{lists} index lists fit neither {kv_heads} KV heads nor {heads} query heads")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"queries, keys and values of one dtype are needed, got {q.dtype}, {k.dtype}, {v.dtype}")
    rows, all_lists = heads // lists, batch * lists
    check_scores(scores, score_rows, score_block, (batch, lists, capacity), queries)
    scored = 0 if scores is None else score_block
    launch = launch or choose_launch(
        all_lists, rows, dim, width * block_size, capacity, q.dtype, q.device, uneven=uneven, score_block=scored
    )
    if scores is not None:
        _refuse_scores(scores, score_block, rows, launch)
    most_tiles = all_lists * (triton.cdiv(capacity, launch.tokens) + launch.list_cost)
    if launch.balanced and most_tiles * launch.splits >= 1 << 31:
        raise ValueError(f"{all_lists} lists of up to {capacity} tokens are more than a balanced launch can share out")
    row_tiles, padded = triton.cdiv(rows, launch.rows), max(16, triton.next_power_of_2(dim))
    alone = launch.splits == 1 and not launch.balanced
    slots = launch.splits + all_lists if launch.balanced else 0 if alone else launch.splits * all_lists
    grouped = launch.balanced and launch.splits > launch.merge_group
    partials = new_partials(2 * slots if grouped else slots, rows, dim, q.device)
    counting = (all_lists + slots if grouped else all_lists) * row_tiles
    counters = arrival_counters(counting, q.device) if launch.fused_merge and not alone else None
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    at_once = launch.merge_group if grouped else launch.splits
    merge_rows, merge_some = merge_tile(min(rows, launch.rows), at_once, padded, launch.num_warps)
    grid = (launch.splits * row_tiles,) if launch.balanced else (launch.splits * row_tiles, lists, batch)
    with torch.cuda.device_of(q):
        sparse_decode_attention_kernel[grid](
            q, k, v, indices, counts, kv_lengths.contiguous(), bias, kv_tokens_read,
            scores, None if score_rows is None else score_rows.contiguous(),
            *partials, lse if counters is None else counters, out, lse,
            q.stride(0), q.stride(1), q.stride(3), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            *indices.stride(), *counts.stride(), *((0, 0, 0) if bias is None else bias.stride()),
            0 if kv_tokens_read is None else kv_tokens_read.stride(0),
            *((0, 0, 0) if scores is None else scores.stride()),
            LOG2E * (dim**-0.5 if scale is None else scale), capacity, width, lists, lists // kv_heads,
            all_lists,
            K_TOKEN=k.stride(2), K_DIM=k.stride(3), V_TOKEN=v.stride(2), V_DIM=v.stride(3), BLOCK_SIZE=block_size,
            DIM=dim, BLOCK_DIM=padded, BLOCK_ROWS=launch.rows, BLOCK_TOKENS=launch.tokens, ROWS=rows,
            BLOCK_LISTS=triton.next_power_of_2(all_lists), SPLITS=launch.splits, BALANCED=launch.balanced,
            FUSED=launch.fused_merge, MERGE_ROWS=merge_rows, MERGE_PARTS=merge_some,
            GROUP=launch.merge_group, LIST_COST=launch.list_cost, SCORE_BLOCK=scored,
            # Triton's interpreter, which CPU tensors imply, computes wrongly on bfloat16.
            UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,
            num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=launch.registers,
            **overlap_settings(True, q.device),
        )  # fmt: skip
        if not launch.fused_merge and not alone:
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
