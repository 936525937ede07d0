"""Sparse decode attention as Triton kernels: each list's tokens are split over programs, their parts are merged."""

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
def sparse_decode_attention_kernel(
    p_q, p_k, p_v, p_indices, p_counts, p_lengths, p_acc, p_top, p_total,
    q_batch, q_head, q_dim, k_batch, k_head, k_token, k_dim, v_batch, v_head, v_token, v_dim,
    index_batch, index_list, index_slot, count_batch, count_list,
    scale_log2, splits, rows, capacity, lists, lists_per_kv_head,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One split of one index list: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``.

    ``i`` runs over the split's part of ``{i : i // BLOCK_SIZE in list, i < length}`` and
    ``s_i = log2(e) * scale * q . k_i``. Grid ``(splits, B * Hs, row tiles)``; the query heads that a list serves are
    its rows. Each list's own count is divided over the splits, so that long and short lists both spread out; splits
    past it write only ``m`` = minus infinity and ``l`` = 0.

    ``p_q`` ``[B, Hq, 1, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides;
    ``p_indices`` ``[B, Hs, N]`` and ``p_counts`` ``[B, Hs]`` int64; ``p_lengths`` ``[B]`` integer; partials as in
    ``Partials``. Sums run in float32. Moves ``2 * sum(counts) * BLOCK_SIZE * D`` elements of cache and
    ``sum(counts)`` indices.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog); Tang et al. 2024, Quest
    (arXiv 2406.10774), section 3.3: attention over selected pages.
    """
    i_split = tl.program_id(0)
    i_flat = tl.program_id(1).to(tl.int64)
    i_batch = i_flat // lists
    i_list = i_flat % lists
    i_head = i_list // lists_per_kv_head
    o_row = tl.program_id(2) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    o_slot = tl.arange(0, BLOCK_TOKENS)

    length = tl.minimum(tl.load(p_lengths + i_batch), capacity).to(tl.int64)
    listed = (tl.load(p_counts + i_batch * count_batch + i_list * count_list) * BLOCK_SIZE).to(tl.int32)
    share = tl.cdiv(tl.cdiv(listed, splits), BLOCK_TOKENS) * BLOCK_TOKENS
    start = i_split * share
    stop = tl.minimum(start + share, listed)

    o_q = (i_batch * q_batch + (i_list * rows + o_row) * q_head)[:, None] + (o_dim * q_dim)[None, :]
    b_q = tl.load(p_q + o_q, mask=(o_row < rows)[:, None] & (o_dim < DIM)[None, :], other=0.0)
    if UPCAST:
        b_q = b_q.to(tl.float32)
    b_top = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_ROWS], dtype=tl.float32)
    b_acc = tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)
    p_k += i_batch * k_batch + i_head * k_head
    p_v += i_batch * v_batch + i_head * v_head
    p_indices += i_batch * index_batch + i_list * index_list
    for i_slot in range(start, stop, BLOCK_TOKENS):
        slots = i_slot + o_slot
        in_list = slots < stop
        block = tl.load(p_indices + (slots // BLOCK_SIZE) * index_slot, mask=in_list, other=0).to(tl.int64)
        tokens = block * BLOCK_SIZE + slots % BLOCK_SIZE
        visible = in_list & (tokens < length)
        loaded = visible[:, None] & (o_dim < DIM)[None, :]
        b_k = tl.load(p_k + tokens[:, None] * k_token + (o_dim * k_dim)[None, :], mask=loaded, other=0.0)
        b_v = tl.load(p_v + tokens[:, None] * v_token + (o_dim * v_dim)[None, :], mask=loaded, other=0.0)
        if UPCAST:
            b_k = b_k.to(tl.float32)
            b_v = b_v.to(tl.float32)
        b_top, b_total, b_acc = softmax_step(b_q, b_k, b_v, visible, b_top, b_total, b_acc, scale_log2)
    store_partials(
        p_acc, p_top, p_total, b_acc, b_top, b_total, i_flat, o_row, i_split, splits, rows, o_dim, DIM, start < stop
    )


def sparse_decode_attention_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    lengths: Tensor,
    scale: float | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over listed blocks as in ``naive.sparse_decode_attention``; a CUDA graph can capture it.

    Args:
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides.
        v: ``[B, Hkv, S, D]``, likewise.
        indices: ``[B, Hs, N]`` int64 block numbers, any strides; entries past the count may hold anything.
        counts: ``[B, Hs]`` int64, at most ``N``.
        block_size: tokens in a block, 1 or more.
        lengths: ``[B]`` integers; a length over ``S`` counts as ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        splits: programs that share one list's tokens; from the shapes when left out.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32.

    Raises:
        ValueError: ``Hs`` is neither the number of KV heads nor of query heads, there is more than one query row, or
            the dtypes differ.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, capacity, lists = k.shape[1], k.shape[2], indices.shape[1]
    if queries != 1:
        raise ValueError(f"sparse decode takes one query row, got {queries}")
    if heads % kv_heads or lists not in (kv_heads, heads):
        raise ValueError(f"{lists} index lists fit neither {kv_heads} KV heads nor {heads} query heads")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"queries, keys and values of one dtype are needed, got {q.dtype}, {k.dtype}, {v.dtype}")
    rows = heads // lists
    tile = choose_tile(rows, dim, q.dtype)
    row_tiles = triton.cdiv(rows, tile.rows)
    most = min(indices.shape[2] * block_size, capacity)
    splits = splits or choose_splits(most, batch * lists * row_tiles, q.device)
    partials = new_partials(batch * lists, rows, splits, dim, q.device)
    with torch.cuda.device_of(q):
        sparse_decode_attention_kernel[(splits, batch * lists, row_tiles)](
            q, k, v, indices, counts, lengths.contiguous(), *partials,
            q.stride(0), q.stride(1), q.stride(3), *k.stride(), *v.stride(), *indices.stride(), *counts.stride(),
            LOG2E * (dim**-0.5 if scale is None else scale), splits, rows, capacity, lists, lists // kv_heads,
            BLOCK_SIZE=block_size, DIM=dim, BLOCK_DIM=tile.dim, BLOCK_ROWS=tile.rows, BLOCK_TOKENS=tile.tokens,
            # Triton's interpreter, which CPU tensors imply, computes wrongly on bfloat16.
            UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,
            # Loading the block numbers takes a pipeline stage of its own.
            num_warps=tile.num_warps, num_stages=tile.num_stages + 1,
        )  # fmt: skip
        return merge_splits(partials, q.shape, q.dtype)
