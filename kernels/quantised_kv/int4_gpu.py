"""Attention over four-bit keys and values as a Triton kernel whose warps each unpack and multiply a group of tokens.

Tokens take the tensor core's long side: scores are ``K Q^T`` and sums ``V^T P^T``, so that unpacked codes go to it from
the registers that they are unpacked in, and a warp needs no other until its split ends. On an H200 at the shape of
Llama-3-8B, one row of 131,072 tokens, a layer takes 54 us (2.8 TB/s); 66 us where codes were float16 numbers above 64,
whose surplus was taken away again.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.multiprocessors import power_of_two
from longdecode.kernels.quantised_kv.launch import QuantisedLaunch, attend_in_splits, choose_int4_launch
from longdecode.kernels.quantised_kv.naive import GROUP, RECENT, Int4Layer
from longdecode.kernels.split_kv import deal_out, finish_part

_WARPS = 4
_RECENT_TILES = 2
"""Tiles of 256 tokens in four bits that hold as many bytes as the 128 exact ones, about."""


@triton.jit
def unpack(b_bytes, dtype: tl.constexpr, FAST: tl.constexpr):
    """Return the lower half of each byte, and all of it; with ``FAST`` times ``2^-24``.

    A small integer's bits are a subnormal float16: a byte needs no conversion, and no base to take away again.
    """
    if FAST:
        b_low, b_byte = tl.inline_asm_elementwise(
            """
            prmt.b32 $2, $4, 0, 0x4140;
            prmt.b32 $3, $4, 0, 0x4342;
            and.b32 $0, $2, 0x000F000F;
            and.b32 $1, $3, 0x000F000F;
            """,
            "=&r,=&r,=&r,=&r,r", [b_bytes], dtype=(tl.float16, tl.float16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        b_low = (b_bytes & 15).to(tl.float32).to(dtype)
        b_byte = b_bytes.to(tl.float32).to(dtype)
    return b_low, b_byte


@triton.jit
def load_inside(p, inside, ALL: tl.constexpr):
    """Return what ``p`` points to, zero outside; without a mask where ``ALL`` of it lies inside."""
    return tl.load(p) if ALL else tl.load(p, mask=inside, other=0)


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
    GROUP: tl.constexpr, RECENT: tl.constexpr, STAGES: tl.constexpr, EXTRA: tl.constexpr, WIDE: tl.constexpr,
    FAST: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """One split of one KV head: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``.

    ``s_i = q . (a k_i + b)`` with codes ``k_i``, and by channel and group of tokens scales ``a`` and least numbers
    ``b``: scales go to the queries, ``q . b`` is added. Values have scales and least numbers by token and run of 64
    channels, which go to the weights. A byte ``16 h + l`` of two codes is multiplied whole: ``h x + l y`` is
    ``(16 h + l) x / 16 + l (y - x / 16)``, here four times that. Grid ``(SPLITS, Hkv, B)``; a tile is ``WARPS`` groups
    of 64 tokens, each with a softmax state of its own. The last split also reads the tokens that are stored exactly,
    which take as long as ``EXTRA`` tiles. Products run in float16, or in float32 where the queries are (``WIDE``), sums
    in float32.

    Storage as in ``Int4Layer``, contiguous but for ``recent_list`` elements from one list's recent tokens to the next.
    Moves ``D + D / 8`` bytes a token and KV head (of 128 channels: 144), and the recent tokens.

    Source: Liu et al. 2024, KIVI (arXiv 2402.02750), section 3; Dao et al. 2023, "Flash-Decoding" (PyTorch blog).
    """
    i_split = tl.program_id(0)
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    i_list = i_batch * kv_heads + i_head
    HALF: tl.constexpr = DIM // 2
    SIDE: tl.constexpr = GROUP // 2
    MANY: tl.constexpr = RUNS * WARPS
    UNIT: tl.constexpr = 4194304.0 if FAST else 0.25  # of products: a quarter of 2^24 or of 1
    dtype: tl.constexpr = tl.float32 if WIDE else tl.float16
    length = tl.maximum(tl.load(p_lengths + i_batch), 0).to(tl.int32)
    packed = tl.minimum(tl.maximum(length // GROUP - 1, 0), groups)
    tiles = tl.cdiv(packed, WARPS)
    start, stop = deal_out(i_split, tiles + EXTRA, SPLITS)
    stop = tl.minimum(stop, tiles)

    o_warp = tl.arange(0, WARPS)
    o_half = tl.arange(0, BLOCK_HALF)
    o_side = tl.arange(0, SIDE)
    o_row = tl.arange(0, BLOCK_ROWS)
    p_query = p_q + i_batch * q_batch + (i_head * ROWS + o_row)[None, :] * q_head + (o_half * q_dim)[:, None]
    asked = (o_half < HALF)[:, None] & (o_row < ROWS)[None, :]
    b_low_q = (tl.load(p_query, mask=asked, other=0.0).to(tl.float32) * (4 * scale_log2)).to(dtype)
    b_high_q = tl.load(p_query + HALF * q_dim, mask=asked, other=0.0).to(tl.float32) * (0.25 * scale_log2)
    b_low_q = tl.broadcast_to(b_low_q[None], [WARPS, BLOCK_HALF, BLOCK_ROWS])
    b_high_q = tl.broadcast_to(b_high_q.to(dtype)[None], [WARPS, BLOCK_HALF, BLOCK_ROWS])
    b_top = tl.full([WARPS, BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([WARPS, SIDE, BLOCK_ROWS], dtype=tl.float32)
    # Runs before warps: warp w then multiplies the values of its own group in every run.
    b_acc = tl.zeros([MANY, GROUP, BLOCK_ROWS], dtype=tl.float32)
    b_least = tl.zeros([MANY, 16, BLOCK_ROWS], dtype=tl.float32)
    # One list's storage fits 32-bit offsets from a 64-bit start.
    first = i_list * groups
    p_k += first * (GROUP * HALF)
    p_k_scale += first * DIM
    p_k_least += first * DIM
    p_v += first * (DIM * SIDE)
    p_v_scale += first * (RUNS * GROUP)
    p_v_least += first * (RUNS * GROUP)
    # Where fewer groups are stored than there are warps, the last is repeated, with no weight: what was never written
    # may be no number. A last tile of fewer groups than warps begins early for the same reason.
    o_at = tl.minimum(o_warp, tl.maximum(packed - 1, 0))[:, None, None]
    latest = tl.maximum(packed - WARPS, 0)
    o_k = o_at * (GROUP * HALF) + o_side[None, :, None] * HALF + o_half[None, None, :]
    o_k_scale = o_at * DIM + o_half[None, :, None]
    o_k_least = o_at * DIM + o_half[None, None, :]
    within, across = (o_half < HALF)[None, :, None], (o_half < HALF)[None, None, :]
    FULL: tl.constexpr = HALF == BLOCK_HALF
    o_many = tl.arange(0, MANY)[:, None, None]
    o_at = tl.minimum(o_many % WARPS, tl.maximum(packed - 1, 0))
    o_run = (o_at * RUNS + o_many // WARPS) * GROUP
    o_channel = o_many // WARPS * GROUP + tl.arange(0, GROUP)[None, :, None]
    o_v = (o_at * DIM + o_channel) * SIDE + o_side[None, None, :]
    for i_tile in tl.range(start, stop, num_stages=STAGES):
        i_group = tl.minimum(i_tile * WARPS, latest)
        live = (i_group + o_warp >= i_tile * WARPS) & (i_group + o_warp < packed)
        p_keys = p_k + i_group * (GROUP * HALF) + o_k
        b_first_k = load_inside(p_keys, across, FULL)
        b_second_k = load_inside(p_keys + SIDE * HALF, across, FULL)
        p_scale = p_k_scale + i_group * DIM + o_k_scale
        b_byte_q = b_high_q * load_inside(p_scale + HALF, within, FULL).to(dtype)
        b_low_scaled = b_low_q * load_inside(p_scale, within, FULL).to(dtype) - b_byte_q
        # Every token of a group has the same offset: the tensor core sums it over channels for all.
        p_least = p_k_least + i_group * DIM + o_k_least
        b_low = tl.broadcast_to(load_inside(p_least, across, FULL).to(dtype), [WARPS, SIDE, BLOCK_HALF])
        b_high = tl.broadcast_to(load_inside(p_least + HALF, across, FULL).to(dtype), [WARPS, SIDE, BLOCK_HALF])
        b_offset = tl.dot(b_low, b_low_q, input_precision="ieee") * 0.0625
        b_offset = tl.dot(b_high, b_high_q, b_offset, input_precision="ieee") * (4 / UNIT)
        b_low, b_byte = unpack(b_first_k, dtype, FAST)
        b_first = tl.dot(b_low, b_low_scaled, b_offset, input_precision="ieee")
        b_first = tl.dot(b_byte, b_byte_q, b_first, input_precision="ieee")
        b_low, b_byte = unpack(b_second_k, dtype, FAST)
        b_second = tl.dot(b_low, b_low_scaled, b_offset, input_precision="ieee")
        b_second = tl.dot(b_byte, b_byte_q, b_second, input_precision="ieee")
        b_most = tl.where(live[:, None], tl.max(tl.maximum(b_first, b_second), 1) * UNIT, float("-inf"))
        b_new = tl.maximum(b_top, b_most)
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_shrink = tl.exp2(b_top - b_base)
        b_base = tl.where(live[:, None], b_base, float("inf"))[:, None, :]
        b_first = tl.exp2(b_first * UNIT - b_base)
        b_second = tl.exp2(b_second * UNIT - b_base)
        b_total = b_total * b_shrink[:, None, :] + (b_first + b_second)
        b_top = b_new

        # The two tokens of a byte lie half a group apart.
        b_shrink = tl.reshape(tl.broadcast_to(b_shrink[None], [RUNS, WARPS, BLOCK_ROWS]), [MANY, 1, BLOCK_ROWS])
        b_first = tl.broadcast_to(b_first.to(dtype)[None], [RUNS, WARPS, SIDE, BLOCK_ROWS])
        b_first = tl.reshape(b_first, [MANY, SIDE, BLOCK_ROWS])
        b_second = tl.broadcast_to(b_second.to(dtype)[None], [RUNS, WARPS, SIDE, BLOCK_ROWS])
        b_second = tl.reshape(b_second, [MANY, SIDE, BLOCK_ROWS])
        p_least = p_v_least + i_group * (RUNS * GROUP) + o_run + o_side[None, None, :]
        b_low = tl.broadcast_to(tl.load(p_least).to(dtype), [MANY, 16, SIDE])
        b_least = tl.dot(b_low, b_first, b_least * b_shrink, input_precision="ieee")
        b_high = tl.broadcast_to(tl.load(p_least + SIDE).to(dtype), [MANY, 16, SIDE])
        b_least = tl.dot(b_high, b_second, b_least, input_precision="ieee")
        p_scale = p_v_scale + i_group * (RUNS * GROUP) + o_run + o_side[None, :, None]
        b_second *= (tl.load(p_scale + SIDE).to(dtype) * 0.25).to(dtype)
        b_first = b_first * (tl.load(p_scale).to(dtype) * 4.0).to(dtype) - b_second
        b_bytes = load_inside(p_v + i_group * (DIM * SIDE) + o_v, o_channel < DIM, RUNS * GROUP == DIM)
        b_low, b_byte = unpack(b_bytes, dtype, FAST)
        b_acc = tl.dot(b_low, b_first, b_acc * b_shrink, input_precision="ieee")
        b_acc = tl.dot(b_byte, b_second, b_acc, input_precision="ieee")

    # Join the warps' states, in their order.
    b_sums = tl.sum(b_total, 1)
    b_most = tl.max(b_top, 0)
    b_base = tl.where(b_most == float("-inf"), 0.0, b_most)
    b_share = tl.exp2(b_top - b_base[None, :])
    b_all = tl.sum(b_sums * b_share, 0)
    # The sums of least numbers are the same in all of their rows.
    b_out = tl.reshape(b_acc * UNIT + tl.max(b_least, 1)[:, None, :], [RUNS, WARPS, GROUP, BLOCK_ROWS])
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
    launch = launch or choose_int4_launch(batch * kv_heads, heads // kv_heads, -(-groups // _WARPS), q.dtype, q.device)
    runs = power_of_two(-(-dim // GROUP))
    if runs != layer.v_scale.shape[3]:
        raise ValueError(f"heads of {dim} channels: a power of two of runs of {GROUP} is needed")
    return attend_in_splits(
        int4_attention_kernel, launch, layer, q, lengths, kv_tokens_read, (layer.recent_k.stride(1),), groups,
        runs * GROUP, BLOCK_HALF=max(16, power_of_two(dim // 2)), RUNS=runs, WARPS=_WARPS, GROUP=GROUP, RECENT=RECENT,
        STAGES=launch.num_stages, EXTRA=_RECENT_TILES, FAST=q.dtype != torch.float32 and q.device.type != "cpu",
    )  # fmt: skip
