"""Attention over blocks in slots as a Triton kernel whose programs read what is at hand, then what has arrived."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.block_residency.naive import Arrivals
from longdecode.kernels.layout import needs_upcast
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.resident_attention.launch import ResidentLaunch, choose_launch
from longdecode.kernels.sparse_decode_attention.naive import check_shapes
from longdecode.kernels.sparse_decode_attention.tiles import load_blocks, load_queries
from longdecode.kernels.split_kv import (
    LOG2E,
    arrival_counters,
    empty_outputs,
    empty_state,
    new_partials,
    softmax_step,
    store_part,
    store_rows,
    tile_scores,
)

_LOG2E = tl.constexpr(LOG2E)


@triton.jit
def block_states(
    p_state, i_part, width,
    PARTS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SHARE: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Return the states of the blocks of ``PARTS`` parts of a list from ``i_part`` on, ``[PARTS, ENTRIES]``."""
    b_start = ((i_part + tl.arange(0, PARTS)) * SHARE)[:, None]
    o_entry = b_start // BLOCK_SIZE + tl.arange(0, ENTRIES)[None, :]
    mine = (o_entry < width) & (o_entry * BLOCK_SIZE < b_start + SHARE)
    return tl.load(p_state + o_entry, mask=mine, other=0, volatile=True)


@triton.jit
def wait_for_blocks(
    p_state, i_part, width,
    PARTS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SHARE: tl.constexpr, ENTRIES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Wait until no block of these parts is late; what was copied before is read after."""
    late = 1
    while late > 0:
        b_state = block_states(p_state, i_part, width, PARTS, BLOCK_SIZE, SHARE, ENTRIES)
        late = tl.max(tl.max((b_state == 1).to(tl.int32), 1), 0)
    if PDL:
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; mov.b32 $0, $1;", "=r,r", [tl.arange(0, 128)], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def tile_in_order(i_tile, b_place, first, PARTS: tl.constexpr, TILES: tl.constexpr):
    """Return the tile of a list that a program reads ``i_tile``-th; its part stands at that place in ``b_place``."""
    o_part = tl.arange(0, PARTS)
    return (first + tl.sum(tl.where(b_place == i_tile // TILES, o_part, 0), 0)) * TILES + i_tile % TILES


@triton.jit
def blocks_of_tile(p_list, entry, i_tile, width, BLOCK_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """Return ``load_blocks`` in half the registers: a block's number times its tokens fits 32 bits."""
    return load_blocks(p_list, entry, i_tile, width, BLOCK_SIZE, BLOCK_TOKENS).to(tl.int32)


@triton.jit
def join(b_sum, b_best, b_weight, b_acc, b_top, b_total):
    """Join a part to those before it; the same operations wherever it is called, so the same bits."""
    b_new = tl.maximum(b_best, b_top)
    b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_shrink = tl.exp2(b_best - b_base)
    b_scale = tl.exp2(b_top - b_base)
    b_sum = tl.fma(b_sum, tl.broadcast_to(b_shrink[:, None], b_sum.shape), b_acc * b_scale[:, None])
    return b_sum, b_new, tl.fma(b_weight, b_shrink, b_total * b_scale)


@triton.jit
def load_part(
    p_acc, p_top, p_total, i_slot, i_row,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Read what ``store_part`` wrote."""
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    live = o_row < ROWS
    i_at = tl.cast(i_slot, tl.int64) * ROWS
    o_acc = o_row[:, None] * DIM + o_dim[None, :]
    b_top = tl.load(p_top + i_at + o_row, mask=live, other=float("-inf"), cache_modifier=".cg")
    b_total = tl.load(p_total + i_at + o_row, mask=live, other=0.0, cache_modifier=".cg")
    inside = live[:, None] & (o_dim < DIM)[None, :]
    return tl.load(p_acc + i_at * DIM + o_acc, mask=inside, other=0.0, cache_modifier=".cg"), b_top, b_total


@triton.jit
def resident_attention_kernel(
    p_q, p_k, p_v, p_slots, p_counts, p_state, p_lengths, p_bias, p_bias_blocks, p_tokens_read,
    p_acc, p_top, p_total, p_counters, p_out, p_lse,
    q_batch, q_head, q_dim, k_batch, k_head, v_batch, v_head, slot_batch, slot_list, slot_entry,
    count_batch, count_list, bias_batch, bias_list, bias_token, named_batch, named_list, named_entry, read_batch,
    scale_log2, capacity, width, lists, all_lists,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, PARTS: tl.constexpr, SHARE: tl.constexpr,
    ENTRIES: tl.constexpr, UPCAST: tl.constexpr, WAITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Parts of lists: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``, then joined.

    ``i`` runs over the part's tokens and ``s_i = log2(e) * (scale * q . k_i + bias_i)``. A part is ``SHARE`` tokens of
    a list. Grid ``(SPLITS * row tiles, Hkv, B)``: program ``s`` joins ``PARTS`` consecutive parts of its list in their
    order, and the last program of a list joins what the ``SPLITS`` of them have: what is late changes no bit.

    With ``WAITS`` and ``PDL`` the kernel began when all programs of the copy before it ran, which began when all
    kernels before had ended. A program reads the parts without a late block first, in one loop, so that loads are under
    way from one part to the next. What it cannot join yet, behind a late part, it leaves in scratch. Then it waits for
    the others, reads them and joins what is left. So when all programs have ended, the copy has.

    ``p_q`` ``[B, Hq, 1, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides;
    ``p_slots`` ``[B, Hkv, N]`` and ``p_counts`` ``[B, Hkv]`` int64; ``p_state`` ``[B, Hkv, N]`` int32, contiguous, or
    None; ``p_lengths`` ``[B]`` int64; ``p_bias`` ``[B, Hkv, M]`` float32 and where each entry's block lies in it,
    ``p_bias_blocks`` ``[B, Hkv, N]`` int64, or None; ``p_tokens_read`` ``[B]`` int64 or None; partials as in
    ``Partials``, ``SPLITS`` a list and behind those of all lists, with ``WAITS``, ``PARTS`` a program; ``p_out`` and
    ``p_lse`` contiguous. Moves what ``sparse_decode_attention_kernel`` moves, and four bytes a list entry.

    Source: the split is that of Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog); waiting by
    block is this project's.
    """
    wait_for_earlier(PDL and not WAITS)
    TILES: tl.constexpr = SHARE // BLOCK_TOKENS
    i_program = tl.program_id(0) % SPLITS
    i_row_tile = tl.program_id(0) // SPLITS
    i_row = i_row_tile * BLOCK_ROWS
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    i_batch = tl.program_id(2).to(tl.int64)
    i_head = tl.program_id(1).to(tl.int64)
    i_list = i_batch * lists + i_head
    i_slot = i_list * SPLITS + i_program
    i_scratch = tl.cast(all_lists, tl.int64) * SPLITS + i_slot * PARTS
    p_list = p_slots + i_batch * slot_batch + i_head * slot_list
    length = tl.maximum(tl.minimum(tl.load(p_lengths + i_batch), capacity), 0).to(tl.int32)
    count = tl.load(p_counts + i_batch * count_batch + i_head * count_list)
    listed = (tl.maximum(tl.minimum(count, width), 0) * BLOCK_SIZE).to(tl.int32)
    first = i_program * PARTS
    o_part = tl.arange(0, PARTS)
    o_dim = tl.arange(0, BLOCK_DIM)
    b_place = o_part
    ready = PARTS
    held_up = PARTS
    if WAITS:
        p_state += i_list * width
        b_late = (tl.max(block_states(p_state, first, width, PARTS, BLOCK_SIZE, SHARE, ENTRIES), 1) > 0).to(tl.int32)
        ready = PARTS - tl.sum(b_late, 0)
        held_up = tl.min(tl.where(b_late > 0, o_part, PARTS), 0)
        # Where each part stands: those at hand first, in order, then the others.
        b_place = tl.where(b_late > 0, ready + tl.cumsum(b_late, 0) - 1, tl.cumsum(1 - b_late, 0) - 1)
    b_q = load_queries(p_q, q_batch, q_head, 0, q_dim, i_batch, i_head, o_row, 1, ROWS, DIM, BLOCK_DIM, UPCAST)
    p_k += i_batch * k_batch + i_head * k_head
    p_v += i_batch * v_batch + i_head * v_head
    if p_bias is not None:
        p_bias += i_batch * bias_batch + i_head * bias_list
        p_bias_blocks += i_batch * named_batch + i_head * named_list
    b_read = tl.zeros([BLOCK_TOKENS], dtype=tl.int32)
    b_best = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_weight = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
    b_sum = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    for i_turn in range(2 if WAITS else 1):
        begin = i_turn * ready * TILES
        stop = tl.where(i_turn > 0, PARTS, ready) * TILES
        i_tile = tile_in_order(begin, b_place, first, PARTS, TILES)
        b_block = blocks_of_tile(p_list, slot_entry, i_tile, width, BLOCK_SIZE, BLOCK_TOKENS)
        if p_bias is not None:
            b_named = blocks_of_tile(p_bias_blocks, named_entry, i_tile, width, BLOCK_SIZE, BLOCK_TOKENS)
        if WAITS and (i_turn > 0) & (ready < PARTS):
            wait_for_blocks(p_state, first, width, PARTS, BLOCK_SIZE, SHARE, ENTRIES, PDL)
        b_top, b_total, b_acc = empty_state(BLOCK_ROWS, BLOCK_DIM, BLOCK_TOKENS)
        for i_turn_tile in range(begin, stop):
            i_part = i_tile // TILES
            o_slot = i_tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
            o_inside = (tl.arange(0, BLOCK_TOKENS) if BLOCK_TOKENS % BLOCK_SIZE == 0 else o_slot) % BLOCK_SIZE
            b_token = b_block * BLOCK_SIZE + o_inside
            b_token = tl.where((o_slot < listed) & (b_token < length), b_token, -1)
            if p_bias is not None:
                b_named_token = b_named * BLOCK_SIZE + o_inside
            i_tile = tile_in_order(i_turn_tile + 1, b_place, first, PARTS, TILES)
            b_block = blocks_of_tile(p_list, slot_entry, i_tile, width, BLOCK_SIZE, BLOCK_TOKENS)
            if p_bias is not None:
                b_named = blocks_of_tile(p_bias_blocks, named_entry, i_tile, width, BLOCK_SIZE, BLOCK_TOKENS)
            b_read += (b_token >= 0).to(tl.int32)
            b_tokens = b_token[:, None].to(tl.int64)
            loaded = (b_tokens >= 0) & (o_dim < DIM)[None, :]
            b_k = tl.load(p_k + (b_tokens * K_TOKEN + o_dim[None, :] * K_DIM), mask=loaded, other=0.0)
            b_v = tl.load(p_v + (b_tokens * V_TOKEN + o_dim[None, :] * V_DIM), mask=loaded, other=0.0).to(b_q.dtype)
            b_scores = tile_scores(b_q, b_k.to(b_q.dtype), scale_log2)
            if p_bias is not None:
                b_bias = tl.load(p_bias + b_named_token.to(tl.int64) * bias_token, mask=b_token >= 0, other=0.0)
                b_scores += (b_bias * _LOG2E)[None, :]
            b_scores = tl.where((b_token >= 0)[None, :], b_scores, float("-inf"))
            b_top, b_total, b_acc = softmax_step(b_scores, b_v, b_top, b_total, b_acc)
            if i_turn_tile % TILES == TILES - 1:
                if i_part - first < held_up:
                    b_sum, b_best, b_weight = join(b_sum, b_best, b_weight, b_acc, b_top, tl.sum(b_total, 1))
                else:
                    store_part(
                        p_acc, p_top, p_total, b_acc, b_top, tl.sum(b_total, 1), i_scratch + i_part - first, i_row,
                        ROWS, DIM, BLOCK_DIM, BLOCK_ROWS,
                    )  # fmt: skip
                b_top = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
                b_total = tl.zeros_like(b_total)
                b_acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    if WAITS and held_up < PARTS:
        # What threads of this program wrote is read by others of it.
        tl.debug_barrier()
        for i_part in range(held_up, PARTS):
            b_other, b_other_top, b_other_total = load_part(
                p_acc, p_top, p_total, i_scratch + i_part, i_row, ROWS, DIM, BLOCK_DIM, BLOCK_ROWS
            )
            b_sum, b_best, b_weight = join(b_sum, b_best, b_weight, b_other, b_other_top, b_other_total)
    if p_tokens_read is not None:
        # Several row tiles read the same tokens, which count once.
        read = tl.where(i_row == 0, tl.sum(b_read, 0), 0).to(tl.int64)
        tl.atomic_add(p_tokens_read + i_batch * read_batch, read, sem="relaxed")
    let_next_start(PDL)
    if SPLITS > 1:
        store_part(p_acc, p_top, p_total, b_sum, b_best, b_weight, i_slot, i_row, ROWS, DIM, BLOCK_DIM, BLOCK_ROWS)
        # The barrier puts every thread's stores before the one thread's release.
        tl.debug_barrier()
        p_counters += i_row_tile * all_lists + i_list
        arrived = tl.atomic_add(p_counters, 1, sem="acq_rel", scope="gpu")
    else:
        arrived = 0
    if arrived == SPLITS - 1:
        if SPLITS > 1:
            tl.store(p_counters, 0)
            b_sum, b_best, b_weight = load_part(
                p_acc, p_top, p_total, i_list * SPLITS, i_row, ROWS, DIM, BLOCK_DIM, BLOCK_ROWS
            )
            # Little code, for it comes from memory at the end of every launch: a tile of all parts took 8 us.
            for i_split in range(1, SPLITS):
                b_other, b_other_top, b_other_total = load_part(
                    p_acc, p_top, p_total, i_list * SPLITS + i_split, i_row, ROWS, DIM, BLOCK_DIM, BLOCK_ROWS
                )
                b_sum, b_best, b_weight = join(b_sum, b_best, b_weight, b_other, b_other_top, b_other_total)
        store_rows(p_out, p_lse, b_sum, b_best, b_weight, i_list * ROWS + o_row, o_row < ROWS, o_dim, DIM)


def resident_attention_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    kv_lengths: Tensor,
    bias: Tensor | None = None,
    bias_blocks: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    arrivals: Arrivals | None = None,
    launch: ResidentLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention as in ``naive.resident_attention``; a CUDA graph can capture it.

    With ``arrivals`` it must be launched right after the copy that clears them. Launches on one device must follow one
    another (see ``split_kv.arrival_counters``), and one must have run before the first capture.

    Args:
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides; fastest where ``D`` is contiguous.
        v: ``[B, Hkv, S, D]``, likewise.
        slots: ``[B, Hkv, N]`` int64, any strides; entries past the count may hold anything.
        counts: ``[B, Hkv]`` int64.
        block_size: tokens in a block, 1 or more.
        kv_lengths: ``[B]`` int64; a length over ``S`` counts as ``S``.
        bias: ``[B, Hkv, S]`` float32, any strides; with ``bias_blocks`` ``[B, Hkv, M]``.
        bias_blocks: ``[B, Hkv, N]`` int64, any strides: block of ``bias`` that holds an entry's tokens.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over lists, are added.
        arrivals: blocks on their way, if any.
        launch: how to run; ``choose_launch``'s when left out.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32.

    Raises:
        ValueError: a shape does not fit, there is more than one query row, or the dtypes differ.
    """
    batch, heads, queries, dim = q.shape
    lists, capacity, width = k.shape[1], k.shape[2], slots.shape[2]
    check_shapes(q, lists, slots, kv_lengths, None)
    if queries != 1 or slots.shape[1] != lists:
        raise ValueError(f"{queries} query rows and {slots.shape[1]} lists; 1 row and {lists} lists are needed")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"queries, keys and values of one dtype are needed, got {q.dtype}, {k.dtype}, {v.dtype}")
    if bias_blocks is not None and bias_blocks.shape != slots.shape:
        raise ValueError(f"blocks of the bias {list(bias_blocks.shape)}; {list(slots.shape)} are needed")
    state = None if arrivals is None else arrivals.state
    if state is not None and (state.shape != slots.shape or state.dtype != torch.int32 or not state.is_contiguous()):
        raise ValueError(f"state {state.dtype} {tuple(state.shape)}; contiguous int32 {list(slots.shape)} is needed")
    rows, all_lists = heads // lists, batch * lists
    launch = launch or choose_launch(all_lists, rows, dim, width * block_size, q.dtype, q.device)
    splits, row_tiles = launch.splits_of(width * block_size), triton.cdiv(rows, launch.rows)
    padded = max(16, triton.next_power_of_2(dim))
    partials = new_partials(splits * all_lists * (1 if state is None else 1 + launch.parts), rows, dim, q.device)
    out, lse = empty_outputs(q)
    counters = lse if splits == 1 else arrival_counters(all_lists * row_tiles, q.device)

    named = None if bias is None else slots if bias_blocks is None else bias_blocks
    overlap = overlap_settings(True, q.device)
    with torch.cuda.device_of(q):
        resident_attention_kernel[(splits * row_tiles, lists, batch)](
            q, k, v, slots, counts, state, kv_lengths, bias, named, kv_tokens_read, *partials, counters, out, lse,
            q.stride(0), q.stride(1), q.stride(3), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            *slots.stride(), *counts.stride(), *((0, 0, 0) if bias is None else bias.stride()),
            *((0, 0, 0) if named is None else named.stride()),
            0 if kv_tokens_read is None else kv_tokens_read.stride(0),
            LOG2E * dim**-0.5, capacity, width, lists, all_lists,
            K_TOKEN=k.stride(2), K_DIM=k.stride(3), V_TOKEN=v.stride(2), V_DIM=v.stride(3), BLOCK_SIZE=block_size,
            DIM=dim, BLOCK_DIM=padded, BLOCK_ROWS=launch.rows, BLOCK_TOKENS=launch.tokens, ROWS=rows,
            SPLITS=splits, PARTS=launch.parts, SHARE=launch.share,
            # Its share overlaps one block more where it begins inside one.
            ENTRIES=triton.next_power_of_2(triton.cdiv(launch.share, block_size) + 1),
            UPCAST=needs_upcast(q),
            WAITS=state is not None,
            num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=launch.registers, **overlap,
        )  # fmt: skip
    return out, lse
