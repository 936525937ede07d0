"""A window's attention as two Triton kernels: parts of the lists, then their merge with what the rows kept."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.layout import needs_upcast
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.sparse_decode_attention import launch as sparse
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch
from longdecode.kernels.sparse_decode_attention.naive import check_shapes
from longdecode.kernels.sparse_decode_attention.tiles import load_blocks, load_queries
from longdecode.kernels.split_kv import (
    LOG2E,
    empty_state,
    join_parts,
    merge_tile,
    new_partials,
    softmax_step,
    store_part,
    tile_scores,
)

_LN2 = tl.constexpr(0.6931471805599453)
_TILE_ROWS = 16


def choose_launch(
    lists: int, rows: int, dim: int, most: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> SparseLaunch:
    """Choose as for sparse decode attention; the merge is a launch of its own.

    Rows that fit one tile of the tensor cores, which a single query's group is padded to, run as that group does: which
    tokens a row reads is one number a token here, not a mask that takes registers. More rows run as a block.
    """
    launch = sparse.choose_launch(lists, rows, dim, most, capacity, dtype, device, block=rows > _TILE_ROWS)
    return replace(launch, fused_merge=False)


@triton.jit
def attend_window_kernel(
    p_q, p_k, p_v, p_indices, p_counts, p_loaded, p_positions, p_limits, p_tokens_read, p_acc, p_top, p_total,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, v_batch, v_head, index_batch, index_list, index_slot,
    loaded_batch, loaded_head, read_batch, scale_log2, capacity, width, lists,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr,
    UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Parts of index lists, each row over what it may read: ``m``, ``l`` and ``acc`` as in ``Partials``.

    Row ``t`` reads token ``i`` of list page ``j`` where ``i <= p_t`` and, before the newest, ``A_j < p_t``. Positions
    ascend by one, so that this is ``t >= max(i - p_0, min(A_j - p_0 + 1, T - 1))``: one number a token.

    Grid ``(SPLITS * row tiles, H, B)``: program ``s`` takes tiles ``s, s + SPLITS, ...`` of ``BLOCK_TOKENS`` slots.
    ``p_q`` ``[B, Hq, T, D]``, ``p_k`` and ``p_v`` ``[B, H, S, D]`` float32, float16 or bfloat16, any strides;
    ``p_indices`` ``[B, H, N]``, ``p_counts`` ``[B, H]`` contiguous, ``p_positions`` and ``p_limits`` ``[B, T]``
    contiguous, all int64; ``p_loaded`` ``[B, H, P]`` int32 whose pages are contiguous, read here and written by the
    next kernel; ``p_tokens_read`` ``[B]`` int64. Sums run in float32. Moves ``2 * D`` elements of cache a listed token
    and ``parts * R * (D + 2)`` float32 out.

    Source: RetroAttention (arXiv 2508.09001), equation 2; Dao et al. 2023, "Flash-Decoding" (PyTorch blog).
    """
    wait_for_earlier(PDL)
    i_program = tl.program_id(0) % SPLITS
    i_row = tl.program_id(0) // SPLITS * BLOCK_ROWS
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_list = i_batch * lists + i_head
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    p_list = p_indices + i_batch * index_batch + i_head * index_list
    b_block = load_blocks(p_list, index_slot, i_program, width, BLOCK_SIZE, BLOCK_TOKENS)
    oldest = tl.load(p_positions + i_batch * QUERIES).to(tl.int32)
    length = tl.minimum(tl.load(p_limits + i_batch * QUERIES + QUERIES - 1), capacity).to(tl.int32)
    listed = (tl.minimum(tl.load(p_counts + i_list), width) * BLOCK_SIZE).to(tl.int32)
    b_rank = o_row % QUERIES
    b_reads = tl.load(p_limits + i_batch * QUERIES + b_rank) > 0
    # A row that reads nothing comes before every token.
    b_rank = tl.where(b_reads, b_rank, -1)
    b_q = load_queries(
        p_q, q_batch, q_head, q_row, q_dim, i_batch, i_head, o_row, QUERIES, ROWS, DIM, BLOCK_DIM, UPCAST
    )
    p_k += i_batch * k_batch + i_head * k_head
    p_v += i_batch * v_batch + i_head * v_head
    p_loaded += i_batch * loaded_batch + i_head * loaded_head
    b_top, b_total, b_acc = empty_state(BLOCK_ROWS, BLOCK_DIM, BLOCK_TOKENS)
    b_read = tl.zeros([BLOCK_TOKENS], dtype=tl.int32)
    for i_tile in range(i_program, tl.cdiv(listed, BLOCK_TOKENS), SPLITS):
        o_slot = i_tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
        o_inside = (tl.arange(0, BLOCK_TOKENS) if BLOCK_TOKENS % BLOCK_SIZE == 0 else o_slot) % BLOCK_SIZE
        b_last = tl.load(p_loaded + b_block, mask=o_slot < listed, other=0)
        b_token = b_block.to(tl.int32) * BLOCK_SIZE + o_inside
        b_token = tl.where((o_slot < listed) & (b_token < length), b_token, -1)
        b_block = load_blocks(p_list, index_slot, i_tile + SPLITS, width, BLOCK_SIZE, BLOCK_TOKENS)
        b_read += (b_token >= 0).to(tl.int32)
        b_tokens = b_token[:, None].to(tl.int64)
        stored = (b_tokens >= 0) & (o_dim < DIM)[None, :]
        b_k = tl.load(p_k + (b_tokens * K_TOKEN + o_dim[None, :] * K_DIM), mask=stored, other=0.0)
        b_v = tl.load(p_v + (b_tokens * V_TOKEN + o_dim[None, :] * V_DIM), mask=stored, other=0.0).to(b_q.dtype)
        b_scores = tile_scores(b_q, b_k.to(b_q.dtype), scale_log2)
        b_from = tl.maximum(b_token - oldest, tl.minimum(b_last - oldest + 1, QUERIES - 1))
        b_from = tl.where(b_token >= 0, tl.maximum(b_from, 0), QUERIES)
        b_scores = tl.where(b_rank[:, None] >= b_from[None, :], b_scores, float("-inf"))
        b_top, b_total, b_acc = softmax_step(b_scores, b_v, b_top, b_total, b_acc)
    read = tl.sum(b_read, 0).to(tl.int64)
    if ROWS > BLOCK_ROWS:
        # Several row tiles read the same tokens, which count once.
        read = tl.where(i_row == 0, read, 0)
    tl.atomic_add(p_tokens_read + i_batch * read_batch, read, sem="relaxed")
    let_next_start(PDL)
    store_part(
        p_acc, p_top, p_total, b_acc, b_top, tl.sum(b_total, 1), i_list * SPLITS + i_program, i_row,
        ROWS, DIM, BLOCK_DIM, BLOCK_ROWS,
    )  # fmt: skip


@triton.jit
def join_window_kernel(
    p_acc, p_top, p_total, p_indices, p_counts, p_loaded, p_positions, p_kept, p_kept_lse, p_merged,
    index_batch, index_list, index_slot, loaded_batch, loaded_head, width, lists,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, QUERIES: tl.constexpr, SPLITS: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``o_t = (e^{l_t} o_t + e^{k_t} kept_t) / (e^{l_t} + e^{k_t})`` with ``o_t`` joined from the parts before.

    Then ``kept_{t-1} = o_t`` and ``A_{list_n} = p_T``. Grid ``(Hq, B)``: a program joins one head's rows, and marks its
    share of the list's entries. It goes through the rows in order and writes place ``t - 1`` after place ``t - 1`` was
    read. Partials as ``attend_window_kernel`` leaves them; ``p_kept`` ``[B, Hq, T - 1, D]`` and ``p_kept_lse`` without
    ``D`` float32, contiguous; ``p_merged`` ``[B, T, Hq, D]`` contiguous. Moves ``parts * T * (D + 2)`` float32 and
    ``3 * T * D`` elements a program.

    Source: RetroAttention (arXiv 2508.09001), appendix C.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    i_kv = i_head // GROUP
    i_list = i_batch * lists + i_kv
    i_kept = (i_batch * lists * GROUP + i_head) * (QUERIES - 1)
    o_dim = tl.arange(0, BLOCK_DIM)
    inside = (o_dim < DIM)[None, :]
    dtype = p_kept.dtype.element_ty
    for i_row in range(0, QUERIES, MERGE_ROWS):
        o_row = i_row + tl.arange(0, MERGE_ROWS)
        b_sum, b_top, b_total = join_parts(
            p_acc, p_top, p_total, i_list * SPLITS, SPLITS, (i_head % GROUP) * QUERIES + i_row,
            GROUP * QUERIES, DIM, BLOCK_DIM, MERGE_ROWS, MERGE_PARTS,
        )  # fmt: skip
        past = o_row < QUERIES - 1
        b_kept = tl.load(p_kept + (i_kept + o_row)[:, None] * DIM + o_dim[None, :], mask=past[:, None] & inside,
                         other=0.0)  # fmt: skip
        b_kept_lse = tl.load(p_kept_lse + i_kept + o_row, mask=past, other=float("-inf"))
        b_total = tl.where(b_total == 0.0, 1.0, b_total)
        # Rounded where the separate ops round.
        b_out = (b_sum / b_total[:, None]).to(dtype).to(tl.float32)
        b_lse = (b_top + tl.log2(b_total)) * _LN2
        b_most = tl.maximum(b_lse, b_kept_lse)
        b_base = tl.where(b_most == float("-inf"), 0.0, b_most)
        b_new, b_old = tl.exp(b_lse - b_base), tl.exp(b_kept_lse - b_base)
        b_both = b_new + b_old
        some = b_both > 0
        b_both = tl.where(some, b_both, 1.0)
        b_scale = tl.where(some, 1.0 / b_both, 0.0)
        b_lse = tl.where(some, b_base + tl.log(b_both), float("-inf"))
        b_merged = b_new[:, None] * b_out + b_old[:, None] * b_kept.to(tl.float32)
        b_merged = (b_merged * b_scale[:, None]).to(dtype)
        o_to = (i_batch * QUERIES + o_row) * lists * GROUP + i_head
        live = (o_row < QUERIES)[:, None] & inside
        tl.store(p_merged + o_to[:, None] * DIM + o_dim[None, :], b_merged, mask=live)
        # Threads write places that others have read.
        tl.debug_barrier()
        o_place = i_kept + o_row - 1
        tl.store(p_kept + o_place[:, None] * DIM + o_dim[None, :], b_merged, mask=live & (o_row > 0)[:, None])
        tl.store(p_kept_lse + o_place, b_lse, mask=(o_row > 0) & (o_row < QUERIES))
    listed = tl.minimum(tl.load(p_counts + i_list), width).to(tl.int32)
    now = tl.load(p_positions + i_batch * QUERIES + QUERIES - 1).to(tl.int32)
    p_list = p_indices + i_batch * index_batch + i_kv * index_list
    p_loaded += i_batch * loaded_batch + i_kv * loaded_head
    for i_entry in range((i_head % GROUP).to(tl.int32) * BLOCK, listed, GROUP * BLOCK):
        o_entry = i_entry + tl.arange(0, BLOCK)
        b_page = tl.load(p_list + o_entry.to(tl.int64) * index_slot, mask=o_entry < listed, other=0)
        tl.store(p_loaded + b_page, tl.zeros([BLOCK], dtype=tl.int32) + now, mask=o_entry < listed)


def attend_window_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    loaded: Tensor,
    positions: Tensor,
    limits: Tensor,
    kept: Tensor,
    kept_lse: Tensor,
    *,
    block_size: int,
    kv_tokens_read: Tensor,
    launch: SparseLaunch | None = None,
) -> Tensor:
    """Read, merge and move the window on as in ``naive.attend_window``, in two launches; a CUDA graph can capture it.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16, any strides.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides; fastest where ``D`` is contiguous.
        v: ``[B, Hkv, S, D]``, likewise.
        indices: ``[B, Hkv, N]`` int64, any strides, no page twice in a list.
        counts: ``[B, Hkv]`` int64.
        loaded: ``[B, Hkv, P]`` int32, its last dimension contiguous.
        positions: ``[B, T]`` int64.
        limits: ``[B, T]`` int64.
        kept: ``[B, Hq, T - 1, D]`` in ``q``'s dtype, contiguous.
        kept_lse: ``[B, Hq, T - 1]`` float32, contiguous.
        block_size: tokens in a page.
        kv_tokens_read: ``[B]`` int64.
        launch: how to run, neither balanced nor with a fused merge; ``choose_launch``'s when left out.

    Returns:
        ``[B, Hq, T, D]``, laid out as ``[B, T, Hq, D]``, which the output projection reads without a copy.

    Raises:
        ValueError: a tensor is not contiguous, or the window does not fit the rows.
    """
    (batch, heads, queries, dim), (lists, width), capacity = q.shape, indices.shape[1:], k.shape[2]
    check_shapes(q, k.shape[1], indices, limits, None)
    if kept.shape != (batch, heads, queries - 1, dim) or not q.dtype == k.dtype == v.dtype == kept.dtype:
        raise ValueError(f"kept {kept.dtype} {tuple(kept.shape)} for rows {q.dtype} {tuple(q.shape)}, keys {k.dtype}")
    if not (kept.is_contiguous() and kept_lse.is_contiguous() and loaded.stride(2) == 1):
        raise ValueError("what rows kept, and neighbouring pages of what was loaded, must be contiguous")
    if lists != k.shape[1]:
        raise ValueError(f"{lists} lists for {k.shape[1]} KV heads: one list a KV head is needed")
    group = heads // lists
    rows, padded = group * queries, max(16, triton.next_power_of_2(dim))
    launch = launch or choose_launch(batch * lists, rows, dim, width * block_size, capacity, q.dtype, q.device)
    splits = launch.splits
    partials = new_partials(splits * batch * lists, rows, dim, q.device)
    merged = torch.empty(batch, queries, heads, dim, dtype=q.dtype, device=q.device)
    counts, positions, limits = counts.contiguous(), positions.contiguous(), limits.contiguous()
    merge_warps = 4 if queries * splits * padded <= 1 << 13 else 8
    merge_rows, merge_some = merge_tile(queries, splits, padded, merge_warps)
    overlap = overlap_settings(True, q.device)
    with torch.cuda.device_of(q):
        attend_window_kernel[(splits * triton.cdiv(rows, launch.rows), lists, batch)](
            q, k, v, indices, counts, loaded, positions, limits, kv_tokens_read, *partials, *q.stride(),
            *k.stride()[:2], *v.stride()[:2], *indices.stride(), *loaded.stride()[:2], kv_tokens_read.stride(0),
            LOG2E * dim**-0.5, capacity, width, lists,
            K_TOKEN=k.stride(2), K_DIM=k.stride(3), V_TOKEN=v.stride(2), V_DIM=v.stride(3), BLOCK_SIZE=block_size,
            DIM=dim, BLOCK_DIM=padded, BLOCK_ROWS=launch.rows, BLOCK_TOKENS=launch.tokens, QUERIES=queries, ROWS=rows,
            SPLITS=splits,
            UPCAST=needs_upcast(q),
            num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=launch.registers, **overlap,
        )  # fmt: skip
        join_window_kernel[(heads, batch)](
            *partials, indices, counts, loaded, positions, kept, kept_lse, merged,
            *indices.stride(), *loaded.stride()[:2], width, lists,
            GROUP=group, DIM=dim, BLOCK_DIM=padded, QUERIES=queries, SPLITS=splits, MERGE_ROWS=merge_rows,
            MERGE_PARTS=merge_some, BLOCK=128, num_warps=merge_warps, **overlap,
        )  # fmt: skip
    return merged.transpose(1, 2)
