"""Attention weights summed over a block of rows as a Triton kernel: one pass over the keys."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.decode_attention.block import visible_slots
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.layout import GROUP_REDUCTIONS, check_block, needs_upcast
from longdecode.kernels.score_rows import load_keys
from longdecode.kernels.split_kv import LOG2E

_LOG2E = tl.constexpr(LOG2E)
_TOKENS, _MOST_ROWS = 64, 64


@triton.jit
def attention_weights_kernel(
    p_q, p_k, p_lengths, p_mask, p_lse, p_out,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_token, k_dim, length_batch, length_head,
    scale_log2, capacity, kv_heads,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, REDUCE: tl.constexpr, DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """``w_i = reduce_g sum_t 2^{log2(e) (scale * q_gt . k_i - lse_gt)}`` of a tile of one KV head's tokens.

    Grid ``(token tiles, Hkv, B)``. Query ``t`` of head ``g`` is row ``g * T + t`` and reads what it reads in
    ``block_attention_kernel``; rows are worked off in ``PARTS``, one a head where a maximum needs the heads' sums
    apart. ``p_q`` ``[B, Hq, T, D]`` and ``p_k`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides;
    ``p_lengths`` ``[B, Hkv]`` integer; ``p_mask`` ``[T, T]`` uint8 or None for causal; ``p_lse`` ``[B, Hq, T]`` and
    ``p_out`` ``[B, Hkv, S]`` float32, contiguous. Moves ``sum(lengths) * D`` elements of keys and ``B * Hkv * S``
    float32 out.
    """
    i_token = tl.program_id(0) * BLOCK_TOKENS
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    GROUP: tl.constexpr = ROWS // QUERIES
    PART: tl.constexpr = ROWS // PARTS
    o_token = i_token + tl.arange(0, BLOCK_TOKENS)
    o_dim = tl.arange(0, BLOCK_DIM)
    length = tl.load(p_lengths + i_batch * length_batch + i_head * length_head)
    length = tl.maximum(tl.minimum(length, capacity), 0).to(tl.int32)
    b_out = tl.zeros([BLOCK_TOKENS], dtype=tl.float32)
    if i_token < length:
        p_k += i_batch * k_batch + i_head * k_head
        b_k = load_keys(p_k, o_token, k_token, o_dim, k_dim, o_token < length, DIM, BLOCK_DIM)
        p_q += i_batch * q_batch + i_head * GROUP * q_head
        p_lse += (i_batch * kv_heads + i_head) * ROWS
        if UPCAST:
            b_k = b_k.to(tl.float32)
        for i_part in range(PARTS):
            b_part = tl.zeros([BLOCK_TOKENS], dtype=tl.float32)
            for i_row in range(0, PART, BLOCK_ROWS):
                o_inside = i_row + tl.arange(0, BLOCK_ROWS)
                o_row = i_part * PART + o_inside
                live = o_inside < PART
                o_q = ((o_row // QUERIES) * q_head + (o_row % QUERIES) * q_row)[:, None] + (o_dim * q_dim)[None, :]
                b_q = tl.load(p_q + o_q, mask=live[:, None] & (o_dim < DIM)[None, :], other=0.0)
                b_lse = tl.load(p_lse + o_row, mask=live, other=float("-inf"))
                if UPCAST:
                    b_q = b_q.to(tl.float32)
                b_scores = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale_log2
                first = i_part * PART + i_row
                b_read = visible_slots(p_mask, first, o_token, length - QUERIES, length, QUERIES, BLOCK_ROWS)
                b_read = b_read & (b_lse > float("-inf"))[:, None]
                b_weights = tl.where(b_read, tl.exp2(b_scores - (b_lse * _LOG2E)[:, None]), 0.0)
                if REDUCE == "max" and QUERIES == 1:
                    b_part = tl.maximum(b_part, tl.max(b_weights, 0))
                else:
                    b_part += tl.sum(b_weights, 0)
            b_out = tl.maximum(b_out, b_part) if REDUCE == "max" else b_out + b_part
    if REDUCE == "mean":
        b_out = b_out / GROUP
    p_out += (i_batch * kv_heads + i_head) * capacity
    tl.store(p_out + o_token, b_out, mask=o_token < capacity)


def attention_weights_gpu(
    q: Tensor,
    k: Tensor,
    kv_lengths: Tensor,
    *,
    group: str,
    mask: Tensor | None = None,
    scale: float | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Return summed attention weights as in ``naive.attention_weights``, in one launch where ``lse`` is given.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides.
        kv_lengths: ``[B]`` or ``[B, Hkv]`` integers; a length over ``S`` counts as ``S``.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head.
        mask: ``[T, T]`` bool; causal when left out.
        scale: factor on the scores, above 0; ``D ** -0.5`` when left out.
        lse: ``[B, Hq, T]`` float32 from ``decode_attention`` of the same rows.

    Returns:
        ``[B, Hkv, S]`` float32.

    Raises:
        ValueError: the reduction is unknown, the dtypes differ or a shape does not fit.
    """
    (batch, heads, queries, dim), kv_heads, capacity = q.shape, k.shape[1], k.shape[2]
    if group not in GROUP_REDUCTIONS:
        raise ValueError(f"group reduction {group!r} is none of {', '.join(GROUP_REDUCTIONS)}")
    check_block(kv_lengths, mask, queries)
    if heads % kv_heads or q.dtype != k.dtype:
        raise ValueError(f"{heads} query heads of {q.dtype} cannot share {kv_heads} KV heads of {k.dtype}")
    if lse is None:
        lse = decode_attention_gpu(q, k, k, kv_lengths, mask=mask, scale=scale)[1]
    rows = heads // kv_heads * queries
    parts = heads // kv_heads if group == "max" and queries > 1 else 1
    out = torch.empty(batch, kv_heads, capacity, dtype=torch.float32, device=q.device)
    with torch.cuda.device_of(q):
        attention_weights_kernel[(triton.cdiv(capacity, _TOKENS), kv_heads, batch)](
            q, k, kv_lengths, None if mask is None else mask.contiguous().view(torch.uint8), lse.contiguous(), out,
            *q.stride(), *k.stride(), kv_lengths.stride(0), kv_lengths.stride(1) if kv_lengths.dim() == 2 else 0,
            LOG2E * (dim**-0.5 if scale is None else scale), capacity, kv_heads,
            QUERIES=queries, ROWS=rows, PARTS=parts, REDUCE=group, DIM=dim,
            BLOCK_DIM=max(16, triton.next_power_of_2(dim)),
            BLOCK_ROWS=min(_MOST_ROWS, max(16, triton.next_power_of_2(rows // parts))), BLOCK_TOKENS=_TOKENS,
            UPCAST=needs_upcast(q),
        )  # fmt: skip
    return out
