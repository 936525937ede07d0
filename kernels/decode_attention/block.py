"""Decode attention of a block of rows as a Triton kernel: the cache is read once for all rows, the mask at its end."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from longdecode.kernels.split_kv import deal_out, empty_state, finish_part


@triton.jit
def load_tile(
    p_k, p_v, tokens, K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Load keys and values ``[N, D]`` of a tile; without ``WHOLE`` only its first ``tokens`` tokens, zero elsewhere."""
    o_token = tl.arange(0, BLOCK_TOKENS).to(tl.int64)
    o_dim = tl.arange(0, BLOCK_DIM)
    p_keys = p_k + o_token[:, None] * K_TOKEN + o_dim[None, :] * K_DIM
    p_values = p_v + o_token[:, None] * V_TOKEN + o_dim[None, :] * V_DIM
    if WHOLE and DIM == BLOCK_DIM:
        b_k = tl.load(p_keys)
        b_v = tl.load(p_values)
    else:
        loaded = (o_token < tokens)[:, None] & (o_dim < DIM)[None, :]
        b_k = tl.load(p_keys, mask=loaded, other=0.0)
        b_v = tl.load(p_values, mask=loaded, other=0.0)
    return b_k, b_v


@triton.jit
def fold_tile(b_q, b_k, b_v, b_top, b_total, b_acc, scale_log2, b_visible, MASKED: tl.constexpr):
    """Fold a tile into running maximum, sum and weighted values of rows ``[R, D]``, in base 2.

    The scale, above 0, is applied to the maximum and, in one multiply-add, to the scores. Sums are kept as in
    ``split_kv.softmax_step``.
    """
    b_scores = tl.dot(b_q, tl.trans(b_k.to(b_q.dtype)), input_precision="ieee")
    if MASKED:
        b_scores = tl.where(b_visible, b_scores, float("-inf"))
    b_new = tl.maximum(b_top, tl.max(b_scores, 1) * scale_log2)
    b_base = tl.where(b_new == float("-inf"), 0.0, b_new) if MASKED else b_new
    b_shrink = tl.exp2(b_top - b_base)
    b_weights = tl.exp2(b_scores * scale_log2 - b_base[:, None])
    if b_total.shape[1] == 1:
        b_total = b_total * b_shrink[:, None] + tl.sum(b_weights, 1)[:, None]
    else:
        b_total = b_total * b_shrink[:, None] + b_weights
    b_acc = tl.dot(b_weights.to(b_q.dtype), b_v.to(b_q.dtype), b_acc * b_shrink[:, None], input_precision="ieee")
    return b_new, b_total, b_acc


@triton.jit
def load_rows(
    p_q, q_head, q_row, q_dim, i_row, first_head,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Load query rows ``[R, D]`` from row ``i_row`` on, and return them with an empty softmax state."""
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    o_q = ((first_head + o_row // QUERIES) * q_head + (o_row % QUERIES) * q_row)[:, None] + (o_dim * q_dim)[None, :]
    b_q = tl.load(p_q + o_q, mask=(o_row < ROWS)[:, None] & (o_dim < DIM)[None, :], other=0.0)
    if UPCAST:
        b_q = b_q.to(tl.float32)
    b_top, b_total, b_acc = empty_state(BLOCK_ROWS, BLOCK_DIM, BLOCK_TOKENS)
    return b_q, b_top, b_total, b_acc


@triton.jit
def visible_slots(
    p_mask, i_row, o_token, first, length, QUERIES: tl.constexpr, BLOCK_ROWS: tl.constexpr
):  # fmt: skip
    """Return which tokens ``[N]`` each row reads, ``[R, N]``; the block begins at slot ``first``."""
    o_query = ((i_row + tl.arange(0, BLOCK_ROWS)) % QUERIES)[:, None]
    o_step = (o_token - first)[None, :]
    if p_mask is None:
        b_inside = o_step <= o_query
    else:
        inside = (o_step >= 0) & (o_step < QUERIES)
        b_inside = tl.load(p_mask + o_query * QUERIES + o_step, mask=inside & (o_query >= 0), other=0) != 0
        b_inside = b_inside | (o_step < 0)
    return b_inside & (o_token < length)[None, :]


@triton.jit
def block_attention_kernel(
    p_q, p_k, p_v, p_lengths, p_mask, p_acc, p_top, p_total, p_counters, p_out, p_lse, p_tokens_read,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, v_batch, v_head, length_batch, length_head, read_batch,
    scale_log2, capacity, kv_heads,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, ROW_TILES: tl.constexpr,
    SPLITS: tl.constexpr, FUSED: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """One split of one KV head: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``.

    ``s_i = log2(e) * scale * q . k_i``; query ``t`` of head ``h`` in the group is row ``h * T + t`` and reads slot
    ``i < n - T``, or ``i = n - T + u`` where the mask has ``(t, u)``, for a length ``n``. Grid
    ``(ROW_TILES * SPLITS, Hkv, B)``. The list's tiles of tokens are dealt out over the splits; those that touch the
    block come last and are the only ones under a mask. Parts are joined as in ``decode_attention_kernel``.

    ``p_q`` ``[B, Hq, T, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides (the
    arguments named by tensor and axis, in elements); ``p_lengths`` ``[B, Hkv]`` integer; ``p_mask`` ``[T, T]`` uint8 or
    None for causal; partials as in ``Partials``, slot ``list * SPLITS + split``; ``p_out`` and ``p_lse`` contiguous;
    ``p_tokens_read`` ``[B]`` int64 or None. Sums run in float32. Moves ``2 * sum(lengths) * D`` elements of cache once
    per row tile, the second time from L2, and ``2 * B * Hkv * SPLITS * R * (D + 2)`` float32 through L2.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog); Dao 2023, FlashAttention-2
    (arXiv 2307.08691), section 3.1.
    """
    # The row tiles of a split run side by side: what one has read, the next finds in L2.
    i_tile = tl.program_id(0) % ROW_TILES
    i_split = tl.program_id(0) // ROW_TILES
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_list = i_batch * kv_heads + i_head
    i_row = i_tile * BLOCK_ROWS

    length = tl.load(p_lengths + i_batch * length_batch + i_head * length_head)
    length = tl.maximum(tl.minimum(length, capacity), 0).to(tl.int32)
    tiles = tl.cdiv(length, BLOCK_TOKENS)
    start, stop = deal_out(i_split, tiles, SPLITS)
    whole = tl.maximum(length - QUERIES, 0) // BLOCK_TOKENS

    p_q += i_batch * q_batch
    first_head = i_head * (ROWS // QUERIES)
    b_q, b_top, b_total, b_acc = load_rows(
        p_q, q_head, q_row, q_dim, i_row, first_head, QUERIES, ROWS, DIM, BLOCK_DIM, BLOCK_ROWS, BLOCK_TOKENS, UPCAST
    )
    p_k += i_batch * k_batch + i_head * k_head + start.to(tl.int64) * (BLOCK_TOKENS * K_TOKEN)
    p_v += i_batch * v_batch + i_head * v_head + start.to(tl.int64) * (BLOCK_TOKENS * V_TOKEN)
    for _ in range(start, tl.minimum(stop, whole)):
        b_k, b_v = load_tile(p_k, p_v, BLOCK_TOKENS, K_TOKEN, K_DIM, V_TOKEN, V_DIM, DIM, BLOCK_DIM, BLOCK_TOKENS, True)
        b_top, b_total, b_acc = fold_tile(b_q, b_k, b_v, b_top, b_total, b_acc, scale_log2, None, False)
        p_k += BLOCK_TOKENS * K_TOKEN
        p_v += BLOCK_TOKENS * V_TOKEN
    # Narrower where there are many rows: a mask by row and token takes registers that the rows' sums need.
    LAST_TOKENS: tl.constexpr = BLOCK_TOKENS if BLOCK_ROWS < 64 else 16
    until = tl.minimum(stop * BLOCK_TOKENS, length)
    for i_token in tl.range(tl.maximum(start, whole) * BLOCK_TOKENS, until, LAST_TOKENS, num_stages=2):
        o_token = i_token + tl.arange(0, LAST_TOKENS)
        b_k, b_v = load_tile(
            p_k, p_v, length - i_token, K_TOKEN, K_DIM, V_TOKEN, V_DIM, DIM, BLOCK_DIM, LAST_TOKENS, False
        )
        b_visible = visible_slots(p_mask, i_row, o_token, length - QUERIES, length, QUERIES, BLOCK_ROWS)
        b_top, b_total, b_acc = fold_tile(b_q, b_k, b_v, b_top, b_total, b_acc, scale_log2, b_visible, True)
        p_k += LAST_TOKENS * K_TOKEN
        p_v += LAST_TOKENS * V_TOKEN
    if p_tokens_read is not None:  # noqa: SIM102 (known when compiling; the other is not)
        if (i_tile == 0) & (i_split == 0):
            tl.atomic_add(p_tokens_read + i_batch * read_batch, length.to(tl.int64), sem="relaxed")
    i_first = i_list * SPLITS
    finish_part(
        p_acc, p_top, p_total, p_counters + i_list * ROW_TILES + i_tile, p_out, p_lse,
        b_acc, b_top, tl.sum(b_total, 1), i_list, i_first + i_split, i_first, SPLITS, i_row,
        ROWS, DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, FUSED,
    )  # fmt: skip
