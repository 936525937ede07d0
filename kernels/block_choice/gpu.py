"""Choice of blocks in three Triton launches: logits with parts of their normaliser, block scores, selection."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.block_choice.naive import BlockShares
from longdecode.kernels.layout import needs_upcast
from longdecode.kernels.overlap import overlap_settings, wait_for_earlier
from longdecode.kernels.pooled_keys.naive import Pooling
from longdecode.kernels.score_rows import check_group, choose_score_launch, load_keys
from longdecode.kernels.topk_select.entries import KEPT_KEY, LEAST_KEY, NO_KEY, kept_borders, order_keys
from longdecode.kernels.topk_select.search import VECTOR, bisect
from longdecode.kernels.topk_select.sieve import warp_of

MAX_ROOM = 8192
"""Blocks of a list that one program holds in registers: 512K tokens in blocks of 64."""
_BLOCKS, _PARTS = 64, 32
"""Blocks that a program scores, and parts of a normaliser that it joins at a time."""


@triton.jit
def pooled_logits_kernel(
    p_q, p_means, p_windows, p_logits, p_tops, p_totals, q_batch, q_head, q_dim, m_batch, m_head, m_window, m_dim,
    scale, kv_heads, capacity, parts,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``l_{m,g} = scale * q_g . Kbar_m`` of one KV head's queries; of each tile ``max_m l`` and ``sum_m e^{l - max}``.

    Grid ``(parts / TILES, B * Hkv)``. A part is a tile of ``TILE`` windows, whatever the grid, so that nothing depends
    on the batch. ``p_q`` ``[B, Hq, 1, D]`` and ``p_means`` ``[B, Hkv, M, D]`` float32, float16 or bfloat16;
    ``p_windows`` ``[B]`` int64; ``p_logits`` ``[B, Hkv, M, G]`` (of windows before the length alone), ``p_tops`` and
    ``p_totals`` ``[B, Hkv, parts, G]`` float32, contiguous. Moves the pooled keys before the length in.
    """
    wait_for_earlier(PDL)
    i_list = tl.program_id(1).to(tl.int64)
    i_batch = i_list // kv_heads
    i_head = i_list % kv_heads
    o_row = tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    length = tl.minimum(tl.load(p_windows + i_batch), capacity)
    p_means += i_batch * m_batch + i_head * m_head
    o_q = (i_batch * q_batch + (i_head * ROWS + o_row) * q_head)[None, :] + (o_dim * q_dim)[:, None]
    b_q = tl.load(p_q + o_q, mask=(o_row < ROWS)[None, :] & (o_dim < DIM)[:, None], other=0.0)
    if UPCAST:
        b_q = b_q.to(tl.float32)
    for i_tile in tl.range(0, TILES, num_stages=STAGES):
        i_part = tl.program_id(0) * TILES + i_tile
        o_window = i_part * TILE + tl.arange(0, TILE)
        visible = o_window < length
        b_k = load_keys(p_means, o_window, m_window, o_dim, m_dim, visible, DIM, BLOCK_DIM).to(b_q.dtype)
        b_logits = tl.dot(b_k, b_q, input_precision="ieee") * scale
        b_logits = tl.where(visible[:, None], b_logits, float("-inf"))
        o_logit = (i_list * capacity + o_window)[:, None] * ROWS + o_row[None, :]
        tl.store(p_logits + o_logit, b_logits, mask=visible[:, None] & (o_row < ROWS)[None, :])
        b_top = tl.max(b_logits, 0)
        b_total = tl.sum(tl.exp(b_logits - tl.where(b_top == float("-inf"), 0.0, b_top)[None, :]), 0)
        o_part = (i_list * parts + i_part) * ROWS + o_row
        tl.store(p_tops + o_part, b_top, mask=(o_row < ROWS) & (i_part < parts))
        tl.store(p_totals + o_part, b_total, mask=(o_row < ROWS) & (i_part < parts))


@triton.jit
def window_scores_kernel(
    p_logits, p_tops, p_totals, p_windows, p_scores, kv_heads, capacity, parts, room,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, STEP: tl.constexpr, BEFORE: tl.constexpr, TILE: tl.constexpr,
    PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``Q_B = max_{m touches B} sum_g e^{l_{m,g} - lse_g}`` of a tile of blocks, 0 where no complete window touches.

    Grid ``(room / TILE, B * Hkv)``; tensors as in ``pooled_logits_kernel``, ``p_scores`` ``[B, Hkv, room]`` float32 in
    order of position. ``STEP`` windows begin in a block, ``BEFORE`` reach into it from before.
    """
    wait_for_earlier(PDL)
    i_list = tl.program_id(1).to(tl.int64)
    length = tl.minimum(tl.load(p_windows + i_list // kv_heads), capacity)
    o_row = tl.arange(0, BLOCK_ROWS)
    o_block = tl.program_id(0) * TILE + tl.arange(0, TILE)
    b_top = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
    for i_part in range(0, parts, PARTS):
        o_part = i_part + tl.arange(0, PARTS)
        known = (o_part < parts)[:, None] & (o_row < ROWS)[None, :]
        o_parts = (i_list * parts + o_part)[:, None] * ROWS + o_row[None, :]
        b_tops = tl.load(p_tops + o_parts, mask=known, other=float("-inf"))
        b_totals = tl.load(p_totals + o_parts, mask=known, other=0.0)
        b_new = tl.maximum(b_top, tl.max(b_tops, 0))
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_total = b_total * tl.exp(b_top - b_base) + tl.sum(b_totals * tl.exp(b_tops - b_base[None, :]), 0)
        b_top = b_new
    # Infinity, so that rows without a window, and rows that only fill the tile, weigh nothing.
    b_lse = tl.where(b_total > 0.0, b_top + tl.log(tl.maximum(b_total, 1e-30)), float("inf"))
    b_best = tl.zeros([TILE], dtype=tl.float32)
    for i_near in tl.static_range(0, STEP + BEFORE):
        b_window = o_block * STEP + i_near - BEFORE
        exists = (b_window >= 0) & (b_window < length)
        o_logit = (i_list * capacity + b_window)[:, None] * ROWS + o_row[None, :]
        b_logits = tl.load(p_logits + o_logit, mask=exists[:, None] & (o_row < ROWS)[None, :], other=float("-inf"))
        b_best = tl.maximum(b_best, tl.sum(tl.exp(b_logits - b_lse[None, :]), 1))
    tl.store(p_scores + i_list * room + o_block, b_best, mask=o_block < room)


@triton.jit
def take_largest(b_keys, need, rivals, BLOCK: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr,
                 WARP: tl.constexpr):  # fmt: skip
    """Return a mask of the ``need`` largest of ``rivals`` keys, of equal ones the first; others have ``NO_KEY``."""
    b_tile = tl.reshape(b_keys, [BLOCK // (THREADS * VECTOR), THREADS, VECTOR])
    b_bound = tl.max(tl.max(b_tile, 2), 0)
    # As many keys reach the least of the groups' maxima as groups hold some.
    groups = tl.sum((b_bound != NO_KEY).to(tl.int32), 0)
    high = tl.max(b_bound, 0).to(tl.int64) + 1
    low = tl.min(tl.where(b_bound == NO_KEY, KEPT_KEY, b_bound), 0).to(tl.int64)
    low = tl.where(need == 0, KEPT_KEY, tl.where((groups < need) | (need == rivals), LEAST_KEY, low))
    reached = tl.where((need == rivals) | (need == 0), need, -1)
    low, reached, over = bisect(b_tile, need, 0, low, high, reached, THREADS, WARP)
    threshold = low.to(tl.int32)
    tied = (b_keys == threshold) & (b_keys != NO_KEY)
    b_tied = tied.to(tl.int32)
    spare = tl.where(reached == need, BLOCK, need - over)
    return (b_keys > threshold) | (tied & (tl.cumsum(b_tied, 0) <= spare))


@triton.jit
def choose_blocks_kernel(
    p_scores, p_importance, p_in_use, p_blocks, p_counts, e_batch, e_head, e_block, kv_heads, room, width,
    SINK: tl.constexpr, WINDOW: tl.constexpr, BY_QUERY: tl.constexpr, BY_IMPORTANCE: tl.constexpr,
    BLOCK: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, WARP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """List the forced blocks, the best by score and, of the others, by importance; entry 0 is the newest block.

    Grid ``(B * Hkv,)``. A list is held in registers from the newest block back, so that ties go to the newer one.
    ``p_scores`` ``[B, Hkv, room]`` float32 contiguous; ``p_importance`` likewise with any strides, or None, compared
    in bfloat16; ``p_in_use`` ``[B]`` int64; ``p_blocks`` ``[B, Hkv, width]`` and ``p_counts`` ``[B, Hkv]`` int64.
    """
    wait_for_earlier(PDL)
    i_list = tl.program_id(0).to(tl.int64)
    i_batch = i_list // kv_heads
    newest = tl.load(p_in_use + i_batch) - 1
    valid = tl.minimum(newest + 1, room).to(tl.int32)
    first, last = kept_borders(valid, WINDOW, SINK)
    o_entry = tl.arange(0, BLOCK)
    b_place = tl.minimum(newest - o_entry, room - 1)
    known = o_entry < valid
    rival = (o_entry >= first) & (o_entry < last)
    kept, rivals = first + valid - last, last - first

    b_scores = tl.load(p_scores + i_list * room + b_place, mask=known, other=0.0)
    need = tl.minimum(SINK + WINDOW + BY_QUERY - kept, rivals)
    chosen = take_largest(tl.where(rival, order_keys(b_scores), NO_KEY), need, rivals, BLOCK, THREADS, VECTOR, WARP)
    count = kept + need
    if p_importance is not None:
        p_importance += i_batch * e_batch + (i_list % kv_heads) * e_head
        b_bits = tl.load(p_importance + b_place * e_block, mask=known, other=0.0).to(tl.int32, bitcast=True)
        # Round to the nearest bfloat16, to even where two are as near; the half that is left is a short key.
        b_bits = (b_bits + 0x7FFF + ((b_bits >> 16) & 1)) & -65536
        b_keys = order_keys(b_bits.to(tl.float32, bitcast=True)) >> 16
        rest = tl.minimum(SINK + WINDOW + BY_QUERY + BY_IMPORTANCE - count, rivals - need)
        b_keys = tl.where(rival & (chosen == 0), b_keys, NO_KEY)
        chosen = chosen | take_largest(b_keys, rest, rivals - need, BLOCK, THREADS, VECTOR, WARP)
        count += rest
    chosen = (chosen & rival) | (known & (rival == 0))
    b_chosen = chosen.to(tl.int32)
    b_rank = tl.cumsum(b_chosen, 0) - b_chosen
    p_blocks += i_list * width
    tl.store(p_blocks + b_rank, tl.maximum(newest - o_entry, 0), mask=chosen)
    b_newest = tl.maximum(newest, 0) + tl.zeros([BLOCK], dtype=tl.int64)
    tl.store(p_blocks + o_entry, b_newest, mask=(o_entry >= count) & (o_entry < width))
    tl.store(p_counts + i_list, count.to(tl.int64))


def choose_blocks_gpu(
    q: Tensor, means: Tensor, windows: Tensor, in_use: Tensor, importance: Tensor | None, shares: BlockShares,
    pooling: Pooling, block_size: int, room: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Choose blocks as in ``naive.choose_blocks`` with the exact normaliser; a CUDA graph can capture it.

    Args:
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        means: ``[B, Hkv, M, D]`` in ``q``'s dtype, any strides.
        windows: ``[B]`` int64.
        in_use: ``[B]`` int64.
        importance: ``[B, Hkv, room]`` float32, any strides, or ``None``.
        shares: how many of each kind.
        pooling: windows.
        block_size: tokens in a block.
        room: blocks that a row may reach, at most ``MAX_ROOM``.

    Returns:
        As ``naive.choose_blocks``.

    Raises:
        ValueError: heads do not divide, dtypes differ, importances have another shape, or the room is too large.
    """
    (batch, heads, queries, dim), (kv_heads, capacity) = q.shape, means.shape[1:3]
    check_group(None, heads, kv_heads, queries)
    if q.dtype != means.dtype:
        raise ValueError(f"queries {q.dtype} and pooled keys {means.dtype} of one dtype are needed")
    if importance is not None and (importance.shape != (batch, kv_heads, room) or importance.dtype != torch.float32):
        raise ValueError(
            f"importances {importance.dtype} {tuple(importance.shape)}; float32 {(batch, kv_heads, room)} are needed"
        )
    if room > MAX_ROOM:
        raise ValueError(f"{room} blocks a row; at most {MAX_ROOM}")
    rows, lists, device = heads // kv_heads, batch * kv_heads, q.device
    launch = choose_score_launch(capacity, lists, dim, q.dtype, 1, device)
    parts = triton.cdiv(capacity, launch.keys)
    logits = torch.empty(lists, capacity, rows, dtype=torch.float32, device=device)
    tops, totals = (torch.empty(lists, parts, rows, dtype=torch.float32, device=device) for _ in range(2))
    scores = torch.empty(lists, room, dtype=torch.float32, device=device)
    width = min(sum(shares), room)
    blocks = torch.empty(batch, kv_heads, width, dtype=torch.int64, device=device)
    counts = torch.empty(batch, kv_heads, dtype=torch.int64, device=device)
    windows, in_use = windows.contiguous(), in_use.contiguous()
    block_rows, overlap = max(16, triton.next_power_of_2(rows)), overlap_settings(True, device)
    size = max(128, triton.next_power_of_2(room))
    num_warps = min(16, max(4, size // 512))
    threads = min(32 * num_warps, size // VECTOR)
    with torch.cuda.device_of(q):
        pooled_logits_kernel[(triton.cdiv(parts, launch.tiles), lists)](
            q, means, windows, logits, tops, totals, q.stride(0), q.stride(1), q.stride(3), *means.stride(),
            dim**-0.5, kv_heads, capacity, parts,
            ROWS=rows, DIM=dim, BLOCK_DIM=max(16, triton.next_power_of_2(dim)), BLOCK_ROWS=block_rows,
            TILE=launch.keys, TILES=launch.tiles, STAGES=launch.num_stages,
            UPCAST=needs_upcast(q), num_warps=launch.num_warps, **overlap,
        )  # fmt: skip
        window_scores_kernel[(triton.cdiv(room, _BLOCKS), lists)](
            logits, tops, totals, windows, scores, kv_heads, capacity, parts, room,
            ROWS=rows, BLOCK_ROWS=block_rows, STEP=block_size // pooling.stride, BEFORE=pooling.overlap - 1,
            TILE=_BLOCKS, PARTS=_PARTS, num_warps=4, **overlap,
        )  # fmt: skip
        choose_blocks_kernel[(lists,)](
            scores, importance, in_use, blocks, counts, *((0, 0, 0) if importance is None else importance.stride()),
            kv_heads, room, width,
            SINK=shares.sink, WINDOW=shares.window, BY_QUERY=shares.by_query, BY_IMPORTANCE=shares.by_importance,
            BLOCK=size, THREADS=threads, VECTOR=VECTOR, WARP=warp_of(size, threads), num_warps=num_warps, **overlap,
        )  # fmt: skip
    return blocks, counts
