"""Decode attention as a Triton kernel: the cache is split over programs, whose parts are merged."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.decode_attention.block import block_attention_kernel, load_rows, load_tile
from longdecode.kernels.decode_attention.launch import DecodeLaunch, choose_launch
from longdecode.kernels.decode_attention.naive import check_logits
from longdecode.kernels.layout import check_block, needs_upcast
from longdecode.kernels.multiprocessors import MERGE_PARTS
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.split_kv import (
    LOG2E,
    arrival_counters,
    deal_out,
    empty_outputs,
    finish_part,
    merge_partials,
    merge_tile,
    new_partials,
    softmax_step,
    tile_scores,
)

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def dense_tile(
    p_k, p_v, b_q, b_top, b_total, b_acc, tokens, scale_log2, p_logits, o_logits,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Fold the tile at ``p_k``, ``p_v`` into the state; without ``WHOLE`` only its first ``tokens`` tokens count.

    The scores of a row go to ``p_logits + o_logits`` ``[R]`` and on, where that is given.
    """
    o_token = tl.arange(0, BLOCK_TOKENS).to(tl.int64)
    b_k, b_v = load_tile(p_k, p_v, tokens, K_TOKEN, K_DIM, V_TOKEN, V_DIM, DIM, BLOCK_DIM, BLOCK_TOKENS, WHOLE)
    b_scores = tile_scores(b_q, b_k.to(b_q.dtype), scale_log2)
    if not WHOLE:
        b_scores = tl.where((o_token < tokens)[None, :], b_scores, float("-inf"))
    if p_logits is not None:
        written = (o_logits >= 0)[:, None] & (o_token < tokens)[None, :]
        tl.store(p_logits + o_logits[:, None] + o_token[None, :], b_scores * _LN2, mask=written)
    return softmax_step(b_scores, b_v.to(b_q.dtype), b_top, b_total, b_acc)


@triton.jit
def decode_attention_kernel(
    p_q, p_k, p_v, p_lengths, p_acc, p_top, p_total, p_counters, p_out, p_lse, p_tokens_read, p_logits,
    q_batch, q_head, q_row, q_dim, k_batch, k_head, v_batch, v_head, read_batch,
    scale_log2, capacity, kv_heads,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr, ROW_TILES: tl.constexpr, SPLITS: tl.constexpr, FUSED: tl.constexpr,
    MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr, LENGTHS_BY_HEAD: tl.constexpr, UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One split of one KV head: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``.

    ``s_i = log2(e) * scale * q . k_i``; the query of head ``h`` in the group is row ``h``. Grid
    ``(ROW_TILES * SPLITS, Hkv, B)``. Each list's own whole tiles are dealt out over the splits, the first ones taking
    what is left over; the last takes the tokens after the last whole tile, the only ones under a mask. Where
    ``FUSED``, the last program of a list to finish joins the parts (``finish_part``).

    ``p_q`` ``[B, Hq, 1, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides (the
    arguments named by tensor and axis, in elements); ``p_lengths`` ``[B]`` integer; partials as in ``Partials``, slot
    ``list * SPLITS + split``; ``p_out`` and ``p_lse`` contiguous; ``p_tokens_read`` ``[B]`` int64 or None;
    ``p_logits`` ``[B, Hq, S]`` float32 contiguous or None, which receives ``scale * q . k_i``. Sums run in float32.
    Moves ``2 * sum(lengths) * Hkv * D`` elements of cache once per row tile, and
    ``2 * B * Hkv * SPLITS * R * (D + 2)`` float32 through L2.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog).
    """
    let_next_start(PDL)
    wait_for_earlier(PDL)
    # The row tiles of a split run side by side: what one has read, the next finds in L2.
    i_tile = tl.program_id(0) % ROW_TILES
    i_split = tl.program_id(0) // ROW_TILES
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_list = i_batch * kv_heads + i_head
    i_row = i_tile * BLOCK_ROWS
    o_row = i_row + tl.arange(0, BLOCK_ROWS)

    length = tl.load(p_lengths + (i_list if LENGTHS_BY_HEAD else i_batch))
    length = tl.maximum(tl.minimum(length, capacity), 0).to(tl.int32)
    whole = length // BLOCK_TOKENS
    start, stop = deal_out(i_split, whole, SPLITS)

    p_q += i_batch * q_batch
    b_q, b_top, b_total, b_acc = load_rows(
        p_q, q_head, q_row, q_dim, i_row, i_head * ROWS, 1, ROWS, DIM, BLOCK_DIM, BLOCK_ROWS, BLOCK_TOKENS, UPCAST
    )
    p_k += i_batch * k_batch + i_head * k_head + start.to(tl.int64) * (BLOCK_TOKENS * K_TOKEN)
    p_v += i_batch * v_batch + i_head * v_head + start.to(tl.int64) * (BLOCK_TOKENS * V_TOKEN)
    # Where each row's scores of the next tile go; negative for rows of padding, whatever is added.
    o_logits = tl.where(o_row < ROWS, (i_list * ROWS + o_row) * capacity, -(1 << 62)) + start * BLOCK_TOKENS
    for _ in range(start, stop):
        b_top, b_total, b_acc = dense_tile(
            p_k, p_v, b_q, b_top, b_total, b_acc, BLOCK_TOKENS, scale_log2, p_logits, o_logits,
            K_TOKEN, K_DIM, V_TOKEN, V_DIM, DIM, BLOCK_DIM, BLOCK_TOKENS, True,
        )  # fmt: skip
        p_k += BLOCK_TOKENS * K_TOKEN
        p_v += BLOCK_TOKENS * V_TOKEN
        o_logits += BLOCK_TOKENS
    left = length - whole * BLOCK_TOKENS
    if (i_split == SPLITS - 1) & (left > 0):
        b_top, b_total, b_acc = dense_tile(
            p_k, p_v, b_q, b_top, b_total, b_acc, left, scale_log2, p_logits, o_logits,
            K_TOKEN, K_DIM, V_TOKEN, V_DIM, DIM, BLOCK_DIM, BLOCK_TOKENS, False,
        )  # fmt: skip
    if p_tokens_read is not None:  # noqa: SIM102 (known when compiling; the other is not)
        if (i_tile == 0) & (i_split == 0):
            tl.atomic_add(p_tokens_read + i_batch * read_batch, length.to(tl.int64), sem="relaxed")
    finish_part(
        p_acc, p_top, p_total, p_counters + i_list * ROW_TILES + i_tile, p_out, p_lse,
        b_acc, b_top, tl.sum(b_total, 1), i_list, i_list * SPLITS + i_split, i_list * SPLITS, SPLITS, i_row,
        ROWS, DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, FUSED,
    )  # fmt: skip


def decode_attention_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lengths: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    kv_tokens_read: Tensor | None = None,
    logits: Tensor | None = None,
    launch: DecodeLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention as in ``naive.decode_attention``, without looking at a value: a CUDA graph can capture it.

    One row a sequence runs ``decode_attention_kernel``, more run ``block_attention_kernel``. Launches on one device
    must follow one another (see ``split_kv.arrival_counters``), and one must have run before the first capture.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides; fastest where ``D`` is contiguous.
        v: ``[B, Hkv, S, D]``, likewise.
        kv_lengths: ``[B]`` or ``[B, Hkv]`` integers; a length over ``S`` counts as ``S``.
        mask: ``[T, T]`` bool with a true diagonal; ``None`` is causal. One row does not read it.
        scale: factor on the scores, above 0; ``D ** -0.5`` when left out.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over KV heads, are added.
        logits: ``[B, Hq, S]`` float32, which receives the scores of one row a head.
        launch: how to run; ``choose_launch``'s when left out.

    Returns:
        ``out`` ``[B, Hq, T, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, T]`` in float32.

    Raises:
        ValueError: ``Hq`` is not a multiple of ``Hkv``, the dtypes differ, the scale is not above 0, or the mask or
            ``kv_lengths`` has another shape.
    """
    batch, heads, queries, dim = q.shape
    kv_heads, capacity = k.shape[1], k.shape[2]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads evenly")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"queries, keys and values of one dtype are needed, got {q.dtype}, {k.dtype}, {v.dtype}")
    if scale is not None and scale <= 0:
        raise ValueError(f"scale = {scale}; a factor above 0 is needed")
    check_block(kv_lengths, mask, queries)
    rows, lists = heads // kv_heads * queries, batch * kv_heads
    launch = launch or choose_launch(batch, kv_heads, rows, dim, capacity, q.dtype, q.device, queries=queries)
    row_tiles, padded = triton.cdiv(rows, launch.rows), max(16, triton.next_power_of_2(dim))
    alone = launch.splits == 1
    partials = new_partials(0 if alone else lists * launch.splits, rows, dim, q.device)
    counters = arrival_counters(lists * row_tiles, q.device) if launch.fused_merge and not alone else None
    out, lse = empty_outputs(q)
    merge_rows, merge_some = merge_tile(min(rows, launch.rows), launch.splits, padded, launch.num_warps)
    strides = (*q.stride(), k.stride(0), k.stride(1), v.stride(0), v.stride(1))
    read_batch = 0 if kv_tokens_read is None else kv_tokens_read.stride(0)
    scale_log2 = LOG2E * (dim**-0.5 if scale is None else scale)
    settings = {
        "K_TOKEN": k.stride(2), "K_DIM": k.stride(3), "V_TOKEN": v.stride(2), "V_DIM": v.stride(3), "DIM": dim,
        "BLOCK_DIM": padded, "BLOCK_ROWS": launch.rows, "BLOCK_TOKENS": launch.tokens, "ROWS": rows,
        "ROW_TILES": row_tiles, "SPLITS": launch.splits, "FUSED": launch.fused_merge, "MERGE_ROWS": merge_rows,
        "MERGE_PARTS": merge_some, "num_warps": launch.num_warps, "num_stages": launch.num_stages,
        "maxnreg": launch.registers,
        "UPCAST": needs_upcast(q),
    }  # fmt: skip
    check_logits(logits, q, capacity)
    grid = (row_tiles * launch.splits, kv_heads, batch)
    scratch = (*partials, lse if counters is None else counters, out, lse, kv_tokens_read)
    with torch.cuda.device_of(q):
        if queries == 1:
            decode_attention_kernel[grid](
                q, k, v, kv_lengths.contiguous(), *scratch, logits, *strides, read_batch, scale_log2, capacity,
                kv_heads, LENGTHS_BY_HEAD=kv_lengths.dim() == 2, **settings,
                **overlap_settings(launch.splits > MERGE_PARTS, q.device),
            )  # fmt: skip
        else:
            block_attention_kernel[grid](
                q, k, v, kv_lengths, None if mask is None else mask.contiguous().view(torch.uint8), *scratch, *strides,
                kv_lengths.stride(0), kv_lengths.stride(1) if kv_lengths.dim() == 2 else 0, read_batch, scale_log2,
                capacity, kv_heads, QUERIES=queries, **settings,
            )  # fmt: skip
        if not launch.fused_merge and not alone:
            merge_partials(partials, launch.splits, out, lse)
    return out, lse
