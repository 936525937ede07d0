"""Decode attention as Triton kernels: the cache is split over programs, their parts are merged."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.split_kv import (
    LOG2E,
    choose_splits,
    choose_tile,
    merge_splits,
    new_partials,
    softmax_step,
    store_partials,
)


@triton.jit
def decode_attention_kernel(
    p_q, p_k, p_v, p_lengths, p_acc, p_top, p_total,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, k_token, k_dim, v_batch, v_head, v_token, v_dim,
    scale_log2, splits, rows, queries, capacity, kv_heads,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """One split of one KV head: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``.

    ``s_i = log2(e) * scale * q . k_i``; query ``t`` of head ``h`` in the group is row ``h * T + t``. Grid
    ``(splits, B * Hkv, row tiles)``. Each list's own length is divided over the splits; splits past it write only
    ``m`` = minus infinity and ``l`` = 0.

    ``p_q`` ``[B, Hq, T, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides (the
    arguments named by tensor and axis, in elements); ``p_lengths`` ``[B]`` integer; partials as in ``Partials``.
    Sums run in float32. Moves ``2 * sum(lengths) * Hkv * D`` elements of cache once per row tile.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog).
    """
    i_split = tl.program_id(0)
    i_list = tl.program_id(1).to(tl.int64)
    i_batch = i_list // kv_heads
    i_head = i_list % kv_heads
    o_row = tl.program_id(2) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    o_token = tl.arange(0, BLOCK_TOKENS)

    length = tl.minimum(tl.load(p_lengths + i_batch), capacity).to(tl.int32)
    share = tl.cdiv(tl.cdiv(length, splits), BLOCK_TOKENS) * BLOCK_TOKENS
    start = i_split * share
    stop = tl.minimum(start + share, length)

    o_head = i_head * (rows // queries) + o_row // queries
    o_q = (i_batch * q_batch + o_head * q_head + (o_row % queries) * q_row)[:, None] + (o_dim * q_dim)[None, :]
    b_q = tl.load(p_q + o_q, mask=(o_row < rows)[:, None] & (o_dim < DIM)[None, :], other=0.0)
    if UPCAST:
        b_q = b_q.to(tl.float32)
    b_top = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
    b_acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    p_k += i_batch * k_batch + i_head * k_head
    p_v += i_batch * v_batch + i_head * v_head
    for i_token in range(start, stop, BLOCK_TOKENS):
        i_tokens = (i_token + o_token).to(tl.int64)
        visible = i_tokens < stop
        loaded = visible[:, None] & (o_dim < DIM)[None, :]
        b_k = tl.load(p_k + i_tokens[:, None] * k_token + (o_dim * k_dim)[None, :], mask=loaded, other=0.0)
        b_v = tl.load(p_v + i_tokens[:, None] * v_token + (o_dim * v_dim)[None, :], mask=loaded, other=0.0)
        if UPCAST:
            b_k = b_k.to(tl.float32)
            b_v = b_v.to(tl.float32)
        b_top, b_total, b_acc = softmax_step(b_q, b_k, b_v, visible, b_top, b_total, b_acc, scale_log2)
    store_partials(
        p_acc, p_top, p_total, b_acc, b_top, b_total, i_list, o_row, i_split, splits, rows, o_dim, DIM, start < stop
    )


def decode_attention_gpu(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *, scale: float | None = None, splits: int | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention as in ``naive.decode_attention``, without looking at a value: a CUDA graph can capture it.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides.
        v: ``[B, Hkv, S, D]``, likewise.
        lengths: ``[B]`` integers; a length over ``S`` counts as ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        splits: programs that share one KV head's tokens; from the shapes when left out.

    Returns:
        ``out`` ``[B, Hq, T, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, T]`` in float32.

    Raises:
        ValueError: ``Hq`` is not a multiple of ``Hkv``, or the dtypes differ.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, capacity = k.shape[1], k.shape[2]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads evenly")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"queries, keys and values of one dtype are needed, got {q.dtype}, {k.dtype}, {v.dtype}")
    rows, lists = heads // kv_heads * queries, batch * kv_heads
    tile = choose_tile(rows, dim, q.dtype)
    row_tiles = triton.cdiv(rows, tile.rows)
    splits = splits or choose_splits(capacity, lists * row_tiles, q.device)
    partials = new_partials(lists, rows, splits, dim, q.device)
    with torch.cuda.device_of(q):
        decode_attention_kernel[(splits, lists, row_tiles)](
            q, k, v, lengths.contiguous(), *partials, *q.stride(), *k.stride(), *v.stride(),
            LOG2E * (dim**-0.5 if scale is None else scale), splits, rows, queries, capacity, kv_heads,
            DIM=dim, BLOCK_DIM=tile.dim, BLOCK_ROWS=tile.rows, BLOCK_TOKENS=tile.tokens,
            # Triton's interpreter, which CPU tensors imply, computes wrongly on bfloat16.
            UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
        return merge_splits(partials, q.shape, q.dtype)
