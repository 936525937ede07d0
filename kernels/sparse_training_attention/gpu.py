"""Block-sparse attention with a gradient as Triton kernels: tiles that no query reads are never loaded.

The blocks that a query reads of a tile of keys are one word of bits. The backward pass makes the weights again, once
for the gradients of keys, values and bias, once for that of queries; nothing is added atomically.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.split_kv import empty_state, softmax_step, tile_scores

_SIDE, _WIDE_SIDE = 64, 32
"""Queries and keys of a tile, and those in float32; a word has a bit for each block that a tile of keys touches."""


class _Plan(NamedTuple):
    """Blocks read: ``words`` ``[R, C, T]`` int64 of R lists and C tiles of keys, and which tiles meet.

    ``by_query`` ``[R, Q, C]`` lists the tiles of keys that a tile of queries reads, ``by_key`` ``[R, C, Q]`` the tiles
    of queries that read a tile of keys, int32, ``query_counts`` and ``key_counts`` of them being valid.
    """

    words: Tensor
    by_query: Tensor
    query_counts: Tensor
    by_key: Tensor
    key_counts: Tensor


@triton.jit
def pack_read_kernel(
    p_read, p_words, p_meet, tokens, blocks,
    BLOCK_SIZE: tl.constexpr, BITS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Pack what a tile of queries reads of a tile of keys into a word a query, and tell whether anything is read.

    Grid ``(C, Q, R)``. ``p_read`` ``[R, T, N]`` bool, ``p_words`` ``[R, C, T]`` int64, ``p_meet`` ``[R, Q, C]`` int8,
    contiguous.
    """
    i_tile = tl.program_id(0)
    i_list = tl.program_id(2).to(tl.int64)
    o_query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    o_bit = tl.arange(0, BITS)
    first = i_tile * KEYS // BLOCK_SIZE
    last = tl.minimum((i_tile * KEYS + KEYS - 1) // BLOCK_SIZE, blocks - 1)
    p_row = p_read + i_list * tokens * blocks + o_query[:, None] * blocks + first + o_bit[None, :]
    known = (o_query[:, None] < tokens) & (first + o_bit[None, :] <= last)
    b_read = tl.load(p_row, mask=known, other=0).to(tl.int64)
    b_word = tl.sum(b_read << o_bit[None, :].to(tl.int64), 1)
    b_word = tl.where(i_tile * KEYS <= o_query, b_word, 0)
    tl.store(p_words + (i_list * tl.num_programs(0) + i_tile) * tokens + o_query, b_word, mask=o_query < tokens)
    meets = tl.max((b_word != 0).to(tl.int32), 0)
    tl.store(p_meet + (i_list * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + i_tile, meets)


@triton.jit
def _listed(p_words, o_query, o_key, i_tile, tokens, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Return which tokens of a tile of keys each query reads."""
    b_word = tl.load(p_words + i_tile.to(tl.int64) * tokens + o_query, mask=o_query < tokens, other=0)
    o_bit = (o_key // BLOCK_SIZE - i_tile * KEYS // BLOCK_SIZE).to(tl.int64)
    chosen = ((b_word[:, None] >> o_bit[None, :]) & 1) != 0
    return chosen & (o_key[None, :] <= o_query[:, None]) & (o_key[None, :] < tokens)


@triton.jit
def _load_rows(p_first, p_second, i_list, o_token, tokens, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Return tokens of one head ``[N, D]`` of two tensors, their offsets and which of them are inside."""
    o_dim = tl.arange(0, BLOCK_DIM)
    inside = (o_token[:, None] < tokens) & (o_dim < DIM)[None, :]
    o_rows = (i_list * tokens + o_token)[:, None] * DIM + o_dim[None, :]
    b_first = tl.load(p_first + o_rows, mask=inside, other=0.0)
    return b_first, tl.load(p_second + o_rows, mask=inside, other=0.0), o_rows, inside


@triton.jit
def training_attention_kernel(
    p_q, p_k, p_v, p_bias, p_words, p_tiles, p_counts, p_out, p_lse, tokens, scale,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BIASED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of queries of one head; store outputs and the binary logarithm of the weights' sum.

    Grid ``(Q, B * Hq)``. ``p_q`` and ``p_out`` ``[B, Hq, T, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, T, D]``, ``p_bias``
    ``[B, Hkv, T]`` and ``p_lse`` ``[B, Hq, T]`` float32; words and lists as in ``_Plan``; all contiguous.
    """
    i_query = tl.num_programs(0) - 1 - tl.program_id(0)  # those that read most begin first
    i_head = tl.program_id(1).to(tl.int64)
    i_list = i_head // GROUP
    o_query = i_query * QUERIES + tl.arange(0, QUERIES)
    o_dim = tl.arange(0, BLOCK_DIM)
    rows = (o_query[:, None] < tokens) & (o_dim < DIM)[None, :]
    o_own = (i_head * tokens + o_query)[:, None] * DIM + o_dim[None, :]
    b_q = tl.load(p_q + o_own, mask=rows, other=0.0)
    tiles = tl.cdiv(tokens, KEYS)
    p_words += i_list * tiles * tokens
    p_tiles += (i_list * tl.num_programs(0) + i_query) * tiles
    count = tl.load(p_counts + i_list * tl.num_programs(0) + i_query)
    b_top, b_total, b_out = empty_state(QUERIES, BLOCK_DIM, KEYS)
    for i_entry in range(count):
        i_tile = tl.load(p_tiles + i_entry)
        o_key = i_tile * KEYS + tl.arange(0, KEYS)
        b_k, b_v, _, _ = _load_rows(p_k, p_v, i_list, o_key, tokens, DIM, BLOCK_DIM)
        b_score = tile_scores(b_q, b_k, scale * 1.4426950408889634)
        if BIASED:
            b_bias = tl.load(p_bias + i_list * tokens + o_key, mask=o_key < tokens, other=0.0)
            b_score += b_bias[None, :] * 1.4426950408889634
        listed = _listed(p_words, o_query, o_key, i_tile, tokens, BLOCK_SIZE, KEYS)
        b_score = tl.where(listed, b_score, float("-inf"))
        b_top, b_total, b_out = softmax_step(b_score, b_v, b_top, b_total, b_out)
    b_sum = tl.sum(b_total, 1)
    some = b_sum > 0
    b_sum = tl.where(some, b_sum, 1.0)
    tl.store(p_out + o_own, (b_out / b_sum[:, None]).to(p_out.dtype.element_ty), mask=rows)
    b_lse = tl.where(some, b_top + tl.log2(b_sum), 0.0)
    tl.store(p_lse + i_head * tokens + o_query, b_lse, mask=o_query < tokens)


@triton.jit
def _weights_and_slopes(b_q, b_k, b_v, b_probe, b_lse, b_mean, b_bias, listed, scale):
    """Return the weights ``P`` of a tile and the gradient of its logits, ``P (probe v - mean)``."""
    b_logit = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale + b_bias[None, :]
    b_weight = tl.where(listed, tl.exp2(b_logit * 1.4426950408889634 - b_lse[:, None]), 0.0)
    b_probed = tl.dot(b_probe, tl.trans(b_v), input_precision="ieee")
    return b_weight, b_weight * (b_probed - b_mean[:, None])


@triton.jit
def key_gradient_kernel(
    p_q, p_k, p_v, p_bias, p_words, p_tiles, p_counts, p_lse, p_mean, p_probe, p_dk, p_dv, p_dbias, tokens, scale,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BIASED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of a tile of keys, of its values and biases over the queries of a group that read it.

    Grid ``(C, B * Hkv)``. ``p_probe`` ``[B, Hq, T, D]`` is the gradient of the output, ``p_mean`` ``[B, Hq, T]`` its
    product with the output, float32; the rest as in ``training_attention_kernel``.
    """
    i_tile = tl.program_id(0)
    i_list = tl.program_id(1).to(tl.int64)
    o_key = i_tile * KEYS + tl.arange(0, KEYS)
    b_k, b_v, o_own, known = _load_rows(p_k, p_v, i_list, o_key, tokens, DIM, BLOCK_DIM)
    b_bias = tl.zeros([KEYS], dtype=tl.float32)
    if BIASED:
        b_bias = tl.load(p_bias + i_list * tokens + o_key, mask=o_key < tokens, other=0.0)
    stretches = tl.cdiv(tokens, QUERIES)
    p_words += i_list * tl.num_programs(0) * tokens
    p_tiles += (i_list * tl.num_programs(0) + i_tile) * stretches
    count = tl.load(p_counts + i_list * tl.num_programs(0) + i_tile)
    b_dk = tl.zeros([KEYS, BLOCK_DIM], dtype=tl.float32)
    b_dv = tl.zeros([KEYS, BLOCK_DIM], dtype=tl.float32)
    b_dbias = tl.zeros([KEYS], dtype=tl.float32)
    for i_entry in range(count * GROUP):
        i_head = i_list * GROUP + i_entry // count
        o_query = tl.load(p_tiles + i_entry % count) * QUERIES + tl.arange(0, QUERIES)
        b_q, b_probe, _, _ = _load_rows(p_q, p_probe, i_head, o_query, tokens, DIM, BLOCK_DIM)
        b_lse = tl.load(p_lse + i_head * tokens + o_query, mask=o_query < tokens, other=0.0)
        b_mean = tl.load(p_mean + i_head * tokens + o_query, mask=o_query < tokens, other=0.0)
        listed = _listed(p_words, o_query, o_key, i_tile, tokens, BLOCK_SIZE, KEYS)
        b_weight, b_slope = _weights_and_slopes(b_q, b_k, b_v, b_probe, b_lse, b_mean, b_bias, listed, scale)
        b_dv += tl.dot(tl.trans(b_weight.to(b_probe.dtype)), b_probe, input_precision="ieee")
        b_dk += tl.dot(tl.trans(b_slope.to(b_q.dtype)), b_q, input_precision="ieee")
        if BIASED:
            b_dbias += tl.sum(b_slope, 0)
    tl.store(p_dk + o_own, (b_dk * scale).to(p_dk.dtype.element_ty), mask=known)
    tl.store(p_dv + o_own, b_dv.to(p_dv.dtype.element_ty), mask=known)
    if BIASED:
        tl.store(p_dbias + i_list * tokens + o_key, b_dbias, mask=o_key < tokens)


@triton.jit
def query_gradient_kernel(
    p_q, p_k, p_v, p_bias, p_words, p_tiles, p_counts, p_lse, p_mean, p_probe, p_dq, tokens, scale,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BIASED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of a tile of queries of one head over the tiles of keys that it reads.

    Grid ``(Q, B * Hq)``; arguments as in ``key_gradient_kernel``.
    """
    i_query = tl.num_programs(0) - 1 - tl.program_id(0)
    i_head = tl.program_id(1).to(tl.int64)
    i_list = i_head // GROUP
    o_query = i_query * QUERIES + tl.arange(0, QUERIES)
    b_q, b_probe, o_own, rows = _load_rows(p_q, p_probe, i_head, o_query, tokens, DIM, BLOCK_DIM)
    b_lse = tl.load(p_lse + i_head * tokens + o_query, mask=o_query < tokens, other=0.0)
    b_mean = tl.load(p_mean + i_head * tokens + o_query, mask=o_query < tokens, other=0.0)
    tiles = tl.cdiv(tokens, KEYS)
    p_words += i_list * tiles * tokens
    p_tiles += (i_list * tl.num_programs(0) + i_query) * tiles
    count = tl.load(p_counts + i_list * tl.num_programs(0) + i_query)
    b_dq = tl.zeros([QUERIES, BLOCK_DIM], dtype=tl.float32)
    for i_entry in range(count):
        i_tile = tl.load(p_tiles + i_entry)
        o_key = i_tile * KEYS + tl.arange(0, KEYS)
        b_k, b_v, _, _ = _load_rows(p_k, p_v, i_list, o_key, tokens, DIM, BLOCK_DIM)
        b_bias = tl.zeros([KEYS], dtype=tl.float32)
        if BIASED:
            b_bias = tl.load(p_bias + i_list * tokens + o_key, mask=o_key < tokens, other=0.0)
        listed = _listed(p_words, o_query, o_key, i_tile, tokens, BLOCK_SIZE, KEYS)
        _, b_slope = _weights_and_slopes(b_q, b_k, b_v, b_probe, b_lse, b_mean, b_bias, listed, scale)
        b_dq += tl.dot(b_slope.to(b_k.dtype), b_k, input_precision="ieee")
    tl.store(p_dq + o_own, (b_dq * scale).to(p_dq.dtype.element_ty), mask=rows)


def _side(q: Tensor) -> int:
    return _WIDE_SIDE if q.dtype == torch.float32 else _SIDE


def _plan(read: Tensor, block_size: int, tokens: int, side: int) -> _Plan:
    lists, blocks = read.shape[0] * read.shape[1], read.shape[3]
    tiles = stretches = triton.cdiv(tokens, side)
    words = torch.empty(lists, tiles, tokens, dtype=torch.int64, device=read.device)
    meet = torch.empty(lists, stretches, tiles, dtype=torch.int8, device=read.device)
    touched = (side - 1) // block_size + (2 if side % block_size and block_size % side else 1)
    pack_read_kernel[(tiles, stretches, lists)](
        read.contiguous(), words, meet, tokens, blocks,
        BLOCK_SIZE=block_size, BITS=triton.next_power_of_2(touched), QUERIES=side, KEYS=side, num_warps=4,
    )  # fmt: skip
    sides = []
    for met in (meet, meet.transpose(1, 2)):
        listed = met.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
        sides += [listed.contiguous(), met.sum(dim=-1, dtype=torch.int32)]
    return _Plan(words, *sides)


class _SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        plan: _Plan,
        block_size: int,
        scale: float,
    ) -> Tensor:
        (batch, heads, tokens, dim), side = q.shape, _side(q)
        ctx.sizes = {
            "GROUP": heads // k.shape[1], "DIM": dim, "BLOCK_DIM": max(16, triton.next_power_of_2(dim)),
            "BLOCK_SIZE": block_size, "BIASED": bias is not None, "QUERIES": side, "KEYS": side,
        }  # fmt: skip
        ctx.scale = scale
        out, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        grid = (plan.by_query.shape[1], batch * heads)
        training_attention_kernel[grid](
            q, k, v, bias, plan.words, plan.by_query, plan.query_counts, out, lse, tokens, scale,
            **ctx.sizes, num_warps=4, num_stages=3,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, bias, *plan, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, *planned, out, lse = ctx.saved_tensors
        plan, probe = _Plan(*planned), gradients[0].contiguous()
        mean = (probe.float() * out.float()).sum(dim=-1)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dbias = None if bias is None else torch.empty_like(bias)
        rest = (lse, mean, probe)
        key_gradient_kernel[(plan.by_key.shape[1], k.shape[0] * k.shape[1])](
            q, k, v, bias, plan.words, plan.by_key, plan.key_counts, *rest, dk, dv, dbias, q.shape[2], ctx.scale,
            **ctx.sizes, num_warps=8 if q.dtype == torch.float32 else 4, num_stages=2,
        )  # fmt: skip
        query_gradient_kernel[(plan.by_query.shape[1], q.shape[0] * q.shape[1])](
            q, k, v, bias, plan.words, plan.by_query, plan.query_counts, *rest, dq, q.shape[2], ctx.scale,
            **ctx.sizes, num_warps=4, num_stages=2,
        )  # fmt: skip
        return dq, dk, dv, dbias, None, None, None


def sparse_training_attention_gpu(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, block_size: int, bias: Tensor | None, scale: float
) -> Tensor:
    """Attend as in ``naive.sparse_training_attention``; a query that reads nothing gives zeros.

    Args:
        q: ``[B, Hq, T, D]`` float32, float16 or bfloat16.
        k: ``[B, Hkv, T, D]`` in the same dtype.
        v: as ``k``.
        read: ``[B, Hkv, T, N]`` bool.
        block_size: tokens in a block.
        bias: ``[B, Hkv, T]`` or ``None``.
        scale: factor on the products of queries and keys.

    Returns:
        ``[B, Hq, T, D]`` in ``q``'s dtype.
    """
    with torch.cuda.device_of(q):
        plan = _plan(read, block_size, q.shape[2], _side(q))
        bias = None if bias is None else bias.float().contiguous()
        out: Tensor = _SparseAttention.apply(
            q.contiguous(), k.contiguous(), v.contiguous(), bias, plan, block_size, scale
        )
        return out
