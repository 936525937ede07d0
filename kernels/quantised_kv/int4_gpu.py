"""Attention over four-bit keys and values as a Triton kernel whose warps each unpack and multiply a group of tokens.

Tokens take the tensor core's long side: scores are ``K Q^T`` and sums ``V^T P^T``, so that unpacked codes go to it from
the registers that they are unpacked in, and a warp needs no other until its split ends.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.multiprocessors import MERGE_PARTS, power_of_two
from longdecode.kernels.quantised_kv.launch import QuantisedLaunch, choose_int4_launch
from longdecode.kernels.quantised_kv.naive import GROUP, RECENT, Int4Layer
from longdecode.kernels.split_kv import (
    LOG2E,
    arrival_counters,
    finish_part,
    merge_partials,
    merge_tile,
    new_partials,
)

_WARPS = 4
_BASE = tl.constexpr(64.0)
"""Codes are unpacked as ``64 + code``: a float16 by its bits alone, without a conversion."""


@triton.jit
def unpack(b_bytes, dtype: tl.constexpr, FAST: tl.constexpr):
    """Return ``64 + code`` of the low and of the high half of each byte."""
    if FAST:
        # 0x54 above a code in the upper four bits of a byte is the float16 64 + code.
        b_low, b_high = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 low, high;
            and.b32 high, $4, 0xF0F0F0F0;
            shl.b32 low, $4, 4;
            and.b32 low, low, 0xF0F0F0F0;
            prmt.b32 $0, low, 0x54545454, 0x4140;
            prmt.b32 $1, low, 0x54545454, 0x4342;
            prmt.b32 $2, high, 0x54545454, 0x4140;
            prmt.b32 $3, high, 0x54545454, 0x4342;
            }
            """,
            "=r,=r,=r,=r,r", [b_bytes], dtype=(tl.float16, tl.float16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        b_low = ((b_bytes & 15).to(tl.float32) + _BASE).to(dtype)
        b_high = ((b_bytes >> 4).to(tl.float32) + _BASE).to(dtype)
    return b_low, b_high


@triton.jit
def fold_recent(
    p_q, p_k, p_v, b_top, b_total, b_acc, length, packed, q_head, q_dim, scale_log2,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr, RECENT: tl.constexpr,
    dtype: tl.constexpr,
):  # fmt: skip
    """Fold the tokens from ``packed`` on, which are stored exactly, into a list's state; ``b_acc`` is ``[R, D]``."""
    o_dim = tl.arange(0, BLOCK_DIM)
    o_row = tl.arange(0, BLOCK_ROWS)
    o_slot = tl.arange(0, RECENT)
    # The latest position that stands in each slot.
    o_position = length - 1 - (length - 1 - o_slot + RECENT) % RECENT
    b_exact = (o_position >= packed) & (o_position >= 0)
    loaded = b_exact[:, None] & (o_dim < DIM)[None, :]
    o_recent = o_slot[:, None] * DIM + o_dim[None, :]
    b_k = tl.load(p_k + o_recent, mask=loaded, other=0.0).to(tl.float32).to(dtype)
    b_v = tl.load(p_v + o_recent, mask=loaded, other=0.0).to(tl.float32).to(dtype)
    asked = (o_dim < DIM)[:, None] & (o_row < ROWS)[None, :]
    b_q = tl.load(p_q + o_row[None, :] * q_head + (o_dim * q_dim)[:, None], mask=asked, other=0.0)
    b_q = (b_q.to(tl.float32) * scale_log2).to(dtype)
    b_scores = tl.where(b_exact[:, None], tl.dot(b_k, b_q, input_precision="ieee"), float("-inf"))
    b_new = tl.maximum(b_top, tl.max(b_scores, 0))
    b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_weights = tl.exp2(b_scores - b_base[None, :])
    b_shrink = tl.exp2(b_top - b_base)
    b_total = b_total * b_shrink + tl.sum(b_weights, 0)
    b_sum = tl.dot(tl.trans(b_v), b_weights.to(dtype), input_precision="ieee")
    return b_new, b_total, b_acc * b_shrink[:, None] + tl.trans(b_sum)


@triton.jit
def int4_attention_kernel(
    p_q, p_k, p_k_scale, p_k_least, p_v, p_v_scale, p_v_least, p_recent_k, p_recent_v, p_lengths,
    p_acc, p_top, p_total, p_counters, p_out, p_lse, p_tokens_read,
    q_batch, q_head, q_dim, recent_list, read_batch, scale_log2, groups, kv_heads,
    DIM: tl.constexpr, BLOCK_HALF: tl.constexpr, RUNS: tl.constexpr, BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr,
    SPLITS: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr, WARPS: tl.constexpr,
    GROUP: tl.constexpr, RECENT: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr, FAST: tl.constexpr,
    FUSED: tl.constexpr,
):  # fmt: skip
    """One split of one KV head: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``.

    ``s_i = q . (a k_i + b)`` with codes ``k_i``, and by channel and group of tokens scales ``a`` and least numbers
    ``b``: scales go to the queries, ``q . b`` is added. Values have scales and least numbers by token and run of 64
    channels, which go to the weights. Grid ``(SPLITS, Hkv, B)``; a tile is ``WARPS`` groups of 64 tokens, each with a
    softmax state of its own. The last split also reads the tokens that are stored exactly. Products run in float16,
    or in float32 where the queries are (``WIDE``), sums in float32.

    Storage as in ``Int4Layer``, contiguous but for ``recent_list`` elements from one list's recent tokens to the next.
    Moves ``D + D / 8`` bytes a token and KV head (of 128 channels: 144), and the recent tokens.

    Source: Liu et al. 2024, KIVI (arXiv 2402.02750), section 3; Dao et al. 2023, "Flash-Decoding" (PyTorch blog).
    """
    i_split = tl.program_id(0)
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_list = i_batch * kv_heads + i_head
    HALF: tl.constexpr = DIM // 2
    dtype: tl.constexpr = tl.float32 if WIDE else tl.float16
    length = tl.maximum(tl.load(p_lengths + i_batch), 0).to(tl.int32)
    packed = tl.minimum(tl.maximum(length // GROUP - 1, 0), groups)
    tiles = tl.cdiv(packed, WARPS)
    share = tiles // SPLITS
    spare = tiles % SPLITS
    start = i_split * share + tl.minimum(i_split, spare)
    stop = start + share + tl.where(i_split < spare, 1, 0)

    o_warp = tl.arange(0, WARPS)
    o_half = tl.arange(0, BLOCK_HALF)
    o_token = tl.arange(0, GROUP)
    o_row = tl.arange(0, BLOCK_ROWS)
    o_run = tl.arange(0, RUNS)
    o_byte = tl.arange(0, GROUP // 2)
    p_query = p_q + i_batch * q_batch + (i_head * ROWS + o_row)[None, :] * q_head + (o_half * q_dim)[:, None]
    asked = (o_half < HALF)[:, None] & (o_row < ROWS)[None, :]
    b_low_q = (tl.load(p_query, mask=asked, other=0.0).to(tl.float32) * scale_log2).to(dtype)[None]
    b_high_q = (tl.load(p_query + HALF * q_dim, mask=asked, other=0.0).to(tl.float32) * scale_log2).to(dtype)[None]
    b_top = tl.full([WARPS, BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([WARPS, GROUP, BLOCK_ROWS], dtype=tl.float32)
    # Runs before warps: warp w then multiplies the values of its own group in every run.
    b_acc = tl.zeros([RUNS * WARPS, GROUP, BLOCK_ROWS], dtype=tl.float32)
    b_least = tl.zeros([RUNS, WARPS, GROUP, BLOCK_ROWS], dtype=tl.float32)
    # One list's storage fits 32-bit offsets from a 64-bit start.
    first = i_list * groups
    p_k += first * (GROUP * HALF)
    p_k_scale += first * DIM
    p_k_least += first * DIM
    p_v += first * (DIM * (GROUP // 2))
    p_v_scale += first * (RUNS * GROUP)
    p_v_least += first * (RUNS * GROUP)
    for i_tile in tl.range(start, stop, num_stages=STAGES):
        o_group = i_tile * WARPS + o_warp
        live = o_group < packed
        # Groups past the last repeat it, with no weight: what was never written may be no number.
        o_at = tl.minimum(o_group, packed - 1)
        o_k = o_at[:, None, None] * (GROUP * HALF) + o_token[None, :, None] * HALF + o_half[None, None, :]
        b_low, b_high = unpack(tl.load(p_k + o_k, mask=(o_half < HALF)[None, None, :], other=0), dtype, FAST)
        o_channel = o_at[:, None, None] * DIM + o_half[None, :, None]
        inside = (o_half < HALF)[None, :, None]
        b_low_scaled = b_low_q * tl.load(p_k_scale + o_channel, mask=inside, other=0.0).to(dtype)
        b_high_scaled = b_high_q * tl.load(p_k_scale + HALF + o_channel, mask=inside, other=0.0).to(dtype)
        b_low_least = tl.load(p_k_least + o_channel, mask=inside, other=0.0).to(tl.float32)
        b_high_least = tl.load(p_k_least + HALF + o_channel, mask=inside, other=0.0).to(tl.float32)
        b_offset = b_low_q.to(tl.float32) * b_low_least + b_high_q.to(tl.float32) * b_high_least
        b_offset = tl.sum(b_offset - _BASE * (b_low_scaled + b_high_scaled).to(tl.float32), 1)
        b_scores = tl.dot(b_low, b_low_scaled, input_precision="ieee")
        b_scores = tl.dot(b_high, b_high_scaled, b_scores, input_precision="ieee")
        b_most = tl.where(live[:, None], tl.max(b_scores, 1) + b_offset, float("-inf"))
        b_new = tl.maximum(b_top, b_most)
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_shrink = tl.exp2(b_top - b_base)
        b_weights = tl.exp2(b_scores + tl.where(live[:, None], b_offset - b_base, float("-inf"))[:, None, :])
        b_total = b_total * b_shrink[:, None, :] + b_weights
        b_top = b_new

        o_scale = (o_at[None, :, None] * RUNS + o_run[:, None, None]) * GROUP + o_token[None, None, :]
        b_v_scale = tl.load(p_v_scale + o_scale)
        b_v_least = tl.load(p_v_least + o_scale).to(tl.float32) - _BASE * b_v_scale.to(tl.float32)
        b_least = b_least * b_shrink[None, :, None, :] + b_weights[None] * b_v_least[:, :, :, None]
        b_scaled = b_weights.to(dtype)[None] * b_v_scale.to(dtype)[:, :, :, None]
        # The two tokens of a byte lie half a group apart.
        b_scaled = tl.reshape(b_scaled, [RUNS * WARPS, 2, GROUP // 2, BLOCK_ROWS])
        b_first, b_second = tl.split(tl.permute(b_scaled, (0, 2, 3, 1)))
        o_v = o_run[:, None, None, None] * GROUP + o_token[None, None, :, None]
        p_bytes = p_v + (o_at[None, :, None, None] * DIM + o_v) * (GROUP // 2) + o_byte[None, None, None, :]
        b_bytes = tl.load(p_bytes, mask=o_v < DIM, other=0)
        b_low, b_high = unpack(tl.reshape(b_bytes, [RUNS * WARPS, GROUP, GROUP // 2]), dtype, FAST)
        b_wide = tl.reshape(b_shrink[None] + tl.zeros([RUNS, 1, 1], dtype=tl.float32), [RUNS * WARPS, BLOCK_ROWS])
        b_acc = tl.dot(b_low, b_first, b_acc * b_wide[:, None, :], input_precision="ieee")
        b_acc = tl.dot(b_high, b_second, b_acc, input_precision="ieee")

    # Join the warps' states, in their order.
    b_sums = tl.sum(b_total, 1)
    b_most = tl.max(b_top, 0)
    b_base = tl.where(b_most == float("-inf"), 0.0, b_most)
    b_share = tl.exp2(b_top - b_base[None, :])
    b_all = tl.sum(b_sums * b_share, 0)
    b_out = tl.reshape(b_acc, [RUNS, WARPS, GROUP, BLOCK_ROWS]) + tl.sum(b_least, 2)[:, :, None, :]
    b_out = tl.sum(b_out * b_share[None, :, None, :], 1)
    b_out = tl.trans(tl.reshape(b_out, [RUNS * GROUP, BLOCK_ROWS]))
    if i_split == SPLITS - 1:
        b_most, b_all, b_out = fold_recent(
            p_q + i_batch * q_batch + i_head * ROWS * q_head, p_recent_k + i_list * recent_list,
            p_recent_v + i_list * recent_list, b_most, b_all, b_out, length, packed * GROUP, q_head, q_dim, scale_log2,
            DIM, RUNS * GROUP, BLOCK_ROWS, ROWS, RECENT, dtype,
        )  # fmt: skip
    if p_tokens_read is not None:  # noqa: SIM102 (known when compiling; the other is not)
        if i_split == 0:
            tl.atomic_add(p_tokens_read + i_batch * read_batch, length.to(tl.int64), sem="relaxed")
    finish_part(
        p_acc, p_top, p_total, p_counters + i_list, p_out, p_lse, b_out, b_most, b_all,
        i_list, i_list * SPLITS + i_split, i_list * SPLITS, SPLITS, 0,
        ROWS, DIM, RUNS * GROUP, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, FUSED,
    )  # fmt: skip


def attend_int4_gpu(
    layer: Int4Layer,
    q: Tensor,
    lengths: Tensor,
    kv_tokens_read: Tensor | None = None,
    *,
    launch: QuantisedLaunch | None = None,
) -> Tensor:
    """Return attention as in ``naive.attend_quantised``, in one launch; in two where there are many parts to join.

    Args:
        layer: contiguous but for the recent tokens' rows and heads.
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16; an even ``D``.
        lengths: ``[B]`` int64.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over KV heads, are added.
        launch: how; by ``choose_int4_launch`` when left out.

    Returns:
        ``[B, Hq, 1, D]`` in ``q``'s dtype.
    """
    (batch, heads, _, dim), kv_heads, groups = q.shape, layer.k.shape[1], layer.k.shape[2]
    rows, lists = heads // kv_heads, batch * kv_heads
    launch = launch or choose_int4_launch(lists, rows, -(-groups // _WARPS), q.dtype, q.device)
    runs = power_of_two(-(-dim // GROUP))
    if runs != layer.v_scale.shape[3]:
        raise ValueError(f"heads of {dim} channels: a power of two of runs of {GROUP} is needed")
    partials = new_partials(lists * launch.splits, rows, dim, q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    fused = launch.splits <= MERGE_PARTS
    merge_rows, merge_some = merge_tile(rows, launch.splits, runs * GROUP, launch.num_warps)
    settings: dict[str, Any] = {} if launch.registers is None else {"maxnreg": launch.registers}
    wide = q.dtype == torch.float32
    with torch.cuda.device_of(q):
        int4_attention_kernel[(launch.splits, kv_heads, batch)](
            q, *layer, lengths.contiguous(), *partials, arrival_counters(lists, q.device), out, lse, kv_tokens_read,
            q.stride(0), q.stride(1), q.stride(3), layer.recent_k.stride(1),
            0 if kv_tokens_read is None else kv_tokens_read.stride(0), LOG2E * dim**-0.5, groups, kv_heads,
            DIM=dim, BLOCK_HALF=max(16, power_of_two(dim // 2)), RUNS=runs, BLOCK_ROWS=launch.rows, ROWS=rows,
            SPLITS=launch.splits, MERGE_ROWS=merge_rows, MERGE_PARTS=merge_some, WARPS=_WARPS, GROUP=GROUP,
            RECENT=RECENT, STAGES=launch.num_stages, WIDE=wide, FAST=not wide and q.device.type != "cpu",
            num_warps=launch.num_warps, FUSED=fused, **settings,
        )  # fmt: skip
        if not fused:
            merge_partials(partials, launch.splits, out, lse)
    return out
