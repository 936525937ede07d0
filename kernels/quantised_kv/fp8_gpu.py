"""Attention over eight-bit keys and values as a Triton kernel, split over programs as dense decode attention is."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.multiprocessors import padded_dim
from longdecode.kernels.quantised_kv.launch import QuantisedLaunch, attend_in_splits, choose_fp8_launch
from longdecode.kernels.quantised_kv.naive import V_BLOCK, Fp8Layer
from longdecode.kernels.split_kv import deal_out, empty_state, finish_part, softmax_step, tile_scores


@triton.jit
def fp8_tile(
    p_k, p_v, b_q, b_top, b_total, b_acc, tokens, scale_log2,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Fold a tile of codes into the state; without ``WHOLE`` only its first ``tokens`` tokens count."""
    o_token = tl.arange(0, BLOCK_TOKENS)
    o_dim = tl.arange(0, BLOCK_DIM)
    p_keys = p_k + o_token[:, None] * DIM + o_dim[None, :]
    p_values = p_v + o_dim[:, None] * BLOCK_TOKENS + o_token[None, :]
    if WHOLE and DIM == BLOCK_DIM:
        b_k = tl.load(p_keys)
        b_v = tl.load(p_values)
    else:
        b_k = tl.load(p_keys, mask=(o_token < tokens)[:, None] & (o_dim < DIM)[None, :], other=0.0)
        b_v = tl.load(p_values, mask=(o_dim < DIM)[:, None] & (o_token < tokens)[None, :], other=0.0)
    b_scores = tile_scores(b_q, b_k.to(b_q.dtype), scale_log2)
    if not WHOLE:
        b_scores = tl.where((o_token < tokens)[None, :], b_scores, float("-inf"))
    return softmax_step(b_scores, tl.trans(b_v.to(b_q.dtype)), b_top, b_total, b_acc)


@triton.jit
def fp8_attention_kernel(
    p_q, p_k, p_v, p_k_scale, p_v_scale, p_lengths, p_acc, p_top, p_total, p_counters, p_out, p_lse, p_tokens_read,
    q_batch, q_head, q_dim, k_list, v_list, read_batch, scale_log2, capacity, kv_heads,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr, WIDE: tl.constexpr,
    FUSED: tl.constexpr,
):  # fmt: skip
    """One split of one KV head: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = c_v sum_i 2^{s_i - m} v_i``.

    ``s_i = log2(e) * scale * (q c_k) . k_i`` of codes ``k_i`` and ``v_i`` in e4m3 and their scales ``c``. Codes become
    float16, which holds them exactly, and so do scaled queries, unless these are float32 (``WIDE``). Grid
    ``(SPLITS, Hkv, B)``; tiles are dealt out and parts joined as in ``decode_attention_kernel``.

    ``p_q`` ``[B, Hq, 1, D]``, ``p_k`` ``[B, Hkv, N * BLOCK_TOKENS, D]``, ``p_v`` ``[B, Hkv, N, D, BLOCK_TOKENS]``,
    ``p_k_scale`` ``[B, Hkv, D]``, ``p_v_scale`` ``[B, Hkv]`` float32, ``p_lengths`` ``[B]`` integer. Moves
    ``2 * sum(lengths) * Hkv * D`` bytes of cache.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog); e4m3, Micikevicius et al. 2022
    (arXiv 2209.05433), table 1.
    """
    i_split = tl.program_id(0)
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_list = i_batch * kv_heads + i_head
    o_row = tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    length = tl.load(p_lengths + i_batch)
    length = tl.maximum(tl.minimum(length, capacity), 0).to(tl.int32)
    whole = length // BLOCK_TOKENS
    start, stop = deal_out(i_split, whole, SPLITS)
    o_q = i_batch * q_batch + (i_head * ROWS + o_row)[:, None] * q_head + (o_dim * q_dim)[None, :]
    inside = (o_row < ROWS)[:, None] & (o_dim < DIM)[None, :]
    b_scale = tl.load(p_k_scale + i_list * DIM + o_dim[None, :] + 0 * o_row[:, None], mask=inside, other=0.0)
    b_q = tl.load(p_q + o_q, mask=inside, other=0.0).to(tl.float32) * b_scale
    if not WIDE:
        b_q = b_q.to(tl.float16)
    b_top, b_total, b_acc = empty_state(BLOCK_ROWS, BLOCK_DIM, BLOCK_TOKENS)
    p_k += i_list * k_list + start.to(tl.int64) * (BLOCK_TOKENS * DIM)
    p_v += i_list * v_list + start.to(tl.int64) * (BLOCK_TOKENS * DIM)
    for _ in range(start, stop):
        b_top, b_total, b_acc = fp8_tile(
            p_k, p_v, b_q, b_top, b_total, b_acc, BLOCK_TOKENS, scale_log2, DIM, BLOCK_DIM, BLOCK_TOKENS, True
        )
        p_k += BLOCK_TOKENS * DIM
        p_v += BLOCK_TOKENS * DIM
    left = length - whole * BLOCK_TOKENS
    if (i_split == SPLITS - 1) & (left > 0):
        b_top, b_total, b_acc = fp8_tile(
            p_k, p_v, b_q, b_top, b_total, b_acc, left, scale_log2, DIM, BLOCK_DIM, BLOCK_TOKENS, False
        )
    b_acc *= tl.load(p_v_scale + i_list)
    if p_tokens_read is not None:  # noqa: SIM102 (known when compiling; the other is not)
        if i_split == 0:
            tl.atomic_add(p_tokens_read + i_batch * read_batch, length.to(tl.int64), sem="relaxed")
    finish_part(
        p_acc, p_top, p_total, p_counters + i_list, p_out, p_lse, b_acc, b_top, tl.sum(b_total, 1),
        i_list, i_list * SPLITS + i_split, i_list * SPLITS, SPLITS, 0,
        ROWS, DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, FUSED,
    )  # fmt: skip


def attend_fp8_gpu(
    layer: Fp8Layer,
    q: Tensor,
    lengths: Tensor,
    kv_tokens_read: Tensor | None = None,
    *,
    launch: QuantisedLaunch | None = None,
) -> Tensor:
    """Return attention as in ``naive.attend_quantised``, in one launch; in two where there are many parts to join.

    Args:
        layer: contiguous within each row and KV head.
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        lengths: ``[B]`` int64.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over KV heads, are added.
        launch: how; by ``choose_fp8_launch`` when left out.

    Returns:
        ``[B, Hq, 1, D]`` in ``q``'s dtype.
    """
    (batch, heads, _, dim), kv_heads, capacity = q.shape, layer.k.shape[1], layer.k.shape[2]
    launch = launch or choose_fp8_launch(
        batch * kv_heads, heads // kv_heads, dim, capacity // V_BLOCK, q.dtype, q.device
    )
    padded = padded_dim(dim)
    return attend_in_splits(
        fp8_attention_kernel, launch, layer, q, lengths, kv_tokens_read, (layer.k.stride(1), layer.v.stride(1)),
        capacity, padded, BLOCK_DIM=padded, BLOCK_TOKENS=V_BLOCK, num_stages=launch.num_stages,
    )  # fmt: skip
