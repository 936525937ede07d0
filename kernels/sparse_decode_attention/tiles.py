"""Tiles of sparse decode attention: which tokens a list and its rows read, and the softmax over them."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from longdecode.kernels.sparse_decode_attention.scores import store_scores
from longdecode.kernels.split_kv import LOG2E, empty_state, softmax_step, tile_scores

_LOG2E = tl.constexpr(LOG2E)


@triton.jit
def load_queries(
    p_q, q_batch, q_head, q_row, q_dim, i_batch, i_list, o_row,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, UPCAST: tl.constexpr,
    p_k_scale=None,
):  # fmt: skip
    """Load the rows ``[R, D]`` that a list serves: query ``t`` of head ``h`` is row ``h * T + t``.

    Times ``p_k_scale`` ``[D]`` where keys are codes: in float16, which codes fit exactly, or float32 as the queries.
    """
    o_dim = tl.arange(0, BLOCK_DIM)
    if QUERIES == 1:
        o_q = (i_batch * q_batch + (i_list * ROWS + o_row) * q_head)[:, None] + (o_dim * q_dim)[None, :]
    else:
        o_head = i_list * (ROWS // QUERIES) + o_row // QUERIES
        o_q = (i_batch * q_batch + o_head * q_head + (o_row % QUERIES) * q_row)[:, None] + (o_dim * q_dim)[None, :]
    b_q = tl.load(p_q + o_q, mask=(o_row < ROWS)[:, None] & (o_dim < DIM)[None, :], other=0.0)
    if p_k_scale is not None:
        b_q = b_q.to(tl.float32) * tl.load(p_k_scale + o_dim, mask=o_dim < DIM, other=0.0)[None, :]
        b_q = b_q if p_q.dtype.element_ty == tl.float32 else b_q.to(tl.float16)
    elif UPCAST:
        b_q = b_q.to(tl.float32)
    return b_q


@triton.jit
def load_blocks(p_indices, index_slot, i_tile, width, BLOCK_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """Return the block number of each slot of a tile, ``[BLOCK_TOKENS]`` int64.

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
    """Return the token slots of a list: all of the row's for a count of -1, those of its valid blocks otherwise."""
    return tl.where(count < 0, length, tl.minimum(count, width) * BLOCK_SIZE).to(tl.int32)


@triton.jit
def rows_read(
    b_read, b_token, o_entry, p_limits, p_row_mask, mask_row, mask_entry, everything, o_row, width,
    QUERIES: tl.constexpr,
):  # fmt: skip
    """Narrow the tokens ``[1, N]`` that a list reads to those that each of its rows reads, ``[R, N]``.

    ``p_limits`` ``[T]`` int64 are a batch row's limits of positions, ``p_row_mask`` a list's mask ``[T, N]`` by entry.
    """
    o_query = o_row % QUERIES
    if p_limits is not None:
        b_limit = tl.load(p_limits + o_query)
        b_read = b_read & (b_token[None, :] < b_limit[:, None])
    if p_row_mask is not None:
        o_mask = (o_query * mask_row)[:, None] + (o_entry * mask_entry)[None, :]
        b_listed = tl.load(p_row_mask + o_mask, mask=b_read & (o_entry < width)[None, :], other=0) != 0
        b_read = b_read & (b_listed | everything)
    return b_read


@triton.jit
def attend_tiles(
    b_q, b_block, p_k, p_v, p_indices, p_bias, p_tokens_read, first, stop, step, everything, listed, length, width,
    index_slot, bias_token, scale_log2, p_scores, scored, score_entry,
    p_limits, p_row_mask, mask_row, mask_entry, o_row, p_v_scale,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr, V_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, SCORE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the softmax state over the tiles ``first, first + step, ...`` before ``stop`` of one list.

    A tile is ``BLOCK_TOKENS`` slots of the list: ``BLOCK_TOKENS / BLOCK_SIZE`` listed blocks, or that many tokens of
    the row where the list is ``everything``. Block numbers are loaded a tile ahead, into registers; ``b_block`` are
    those of the first tile. Pointers are those of the list's KV head, indices and bias; the tokens read are added to
    ``p_tokens_read``. Where the list is ``scored``, which takes ``everything`` and, for blocks larger than a tile, a
    step of 1, the scores of its blocks go to ``p_scores``. With ``V_BLOCK`` over 1, values lie channel by channel in
    blocks of so many tokens, which are loaded whole where their first token is read: 16 bytes a load, and no code is
    moved on its way to the product.
    """
    o_dim = tl.arange(0, BLOCK_DIM)
    b_top, b_total, b_acc = empty_state(BLOCK_ROWS, BLOCK_DIM, BLOCK_TOKENS)
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
        if V_BLOCK > 1:
            o_first = o_slot // V_BLOCK * V_BLOCK
            b_first = tl.where(everything, o_first, b_block.to(tl.int32) * BLOCK_SIZE + o_first % BLOCK_SIZE)
            b_first = tl.where((o_first < listed) & (b_first < length), b_first, -1)
            b_first = tl.max_constancy(tl.multiple_of(b_first, V_BLOCK), V_BLOCK)
        b_block = load_blocks(p_indices, index_slot, i_tile + step, width, BLOCK_SIZE, BLOCK_TOKENS)
        b_read += (b_token >= 0).to(tl.int32)
        b_tokens = b_token[:, None].to(tl.int64)
        loaded = (b_tokens >= 0) & (o_dim < DIM)[None, :]
        b_k = tl.load(p_k + (b_tokens * K_TOKEN + o_dim[None, :] * K_DIM), mask=loaded, other=0.0)
        b_k = b_k.to(b_q.dtype)
        if V_BLOCK > 1:
            b_firsts = b_first[None, :].to(tl.int64)
            o_v = b_firsts * V_TOKEN + (o_dim[:, None] * V_BLOCK + (tl.arange(0, BLOCK_TOKENS) % V_BLOCK)[None, :])
            b_v = tl.load(p_v + o_v, mask=(b_firsts >= 0) & (o_dim < DIM)[:, None], other=0.0).to(b_q.dtype)
            b_v = tl.trans(b_v)
        else:
            b_v = tl.load(p_v + (b_tokens * V_TOKEN + o_dim[None, :] * V_DIM), mask=loaded, other=0.0).to(b_q.dtype)
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
        b_visible = (b_token >= 0)[None, :]
        if p_limits is not None or p_row_mask is not None:
            b_visible = rows_read(
                b_visible, b_token, o_slot // BLOCK_SIZE, p_limits, p_row_mask, mask_row, mask_entry, everything, o_row,
                width, QUERIES,
            )  # fmt: skip
        b_scores = tl.where(b_visible, b_scores, float("-inf"))
        b_top, b_total, b_acc = softmax_step(b_scores, b_v, b_top, b_total, b_acc)
    if p_tokens_read is not None:
        read = tl.sum(b_read, 0).to(tl.int64)
        if ROWS > BLOCK_ROWS:
            # Several row tiles read the same tokens, which count once.
            read = tl.where(tl.min(o_row, 0) == 0, read, 0)
        tl.atomic_add(p_tokens_read, read, sem="relaxed")
    if p_v_scale is not None:
        b_acc *= tl.load(p_v_scale)
    return b_top, tl.sum(b_total, 1), b_acc
