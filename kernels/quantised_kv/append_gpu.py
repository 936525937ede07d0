"""Rotation, quantisation and append of one token a row as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.multiprocessors import power_of_two
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.quantised_kv.naive import GROUP, LISTED_V_BLOCK, RECENT, Fp8Layer, Int4Layer
from longdecode.kernels.rope.append_gpu import norm_rope, widen


@triton.jit
def nearest_codes(b_x, b_scale, b_least):
    """Return the four-bit codes of numbers, whose scales and least numbers are float16."""
    b_codes = tl.floor(tl.div_rn(b_x - b_least.to(tl.float32), b_scale.to(tl.float32)) + 0.5)
    return tl.minimum(tl.maximum(b_codes, 0.0), 15.0).to(tl.uint8)


@triton.jit
def scale_of(b_least, b_most):
    """Return the float16 scale of runs with these ends; 1 where they are equal."""
    b_scale = tl.div_rn(b_most - b_least, b_most * 0.0 + 15.0).to(tl.float16)
    return tl.where(b_scale > 0, b_scale, 1.0).to(tl.float16)


@triton.jit
def pack_group(
    p_recent_k, p_recent_v, p_k, p_k_scale, p_k_least, p_v, p_v_scale, p_v_least, first,
    DIM: tl.constexpr, BLOCK_HALF: tl.constexpr, RUNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Quantise the 64 recent tokens from slot ``first`` on: keys by channel, values by token and run of 64 channels."""
    HALF: tl.constexpr = DIM // 2
    o_token = tl.arange(0, GROUP)
    o_half = tl.arange(0, BLOCK_HALF)
    inside = o_half < HALF
    b_packed = tl.zeros([GROUP, BLOCK_HALF], dtype=tl.uint8)
    for i_part in tl.static_range(0, 2):
        p_keys = p_recent_k + (first + o_token)[:, None] * DIM + (i_part * HALF + o_half)[None, :]
        b_k = tl.load(p_keys, mask=inside[None, :], other=0.0).to(tl.float32)
        b_least = tl.min(b_k, 0)
        b_scale = scale_of(b_least, tl.max(b_k, 0))
        tl.store(p_k_scale + i_part * HALF + o_half, b_scale, mask=inside)
        tl.store(p_k_least + i_part * HALF + o_half, b_least.to(tl.float16), mask=inside)
        b_codes = nearest_codes(b_k, b_scale[None, :], b_least.to(tl.float16)[None, :])
        b_packed = (b_packed | (b_codes << (4 * i_part))).to(tl.uint8)
    tl.store(p_k + o_token[:, None] * HALF + o_half[None, :], b_packed, mask=inside[None, :])
    o_byte = tl.arange(0, GROUP // 2)
    for i_run in tl.static_range(0, RUNS):
        o_channel = i_run * GROUP + tl.arange(0, GROUP)
        known = (o_channel < DIM)[:, None]
        b_packed = tl.zeros([GROUP, GROUP // 2], dtype=tl.uint8)
        for i_part in tl.static_range(0, 2):
            o_at = i_part * (GROUP // 2) + o_byte
            p_values = p_recent_v + (first + o_at)[None, :] * DIM + o_channel[:, None]
            b_v = tl.load(p_values, mask=known, other=0.0).to(tl.float32)
            b_least = tl.min(tl.where(known, b_v, float("inf")), 0)
            b_scale = scale_of(b_least, tl.max(tl.where(known, b_v, float("-inf")), 0))
            tl.store(p_v_scale + i_run * GROUP + o_at, b_scale)
            tl.store(p_v_least + i_run * GROUP + o_at, b_least.to(tl.float16))
            b_codes = nearest_codes(b_v, b_scale[None, :], b_least.to(tl.float16)[None, :])
            b_packed = (b_packed | (b_codes << (4 * i_part))).to(tl.uint8)
        tl.store(p_v + o_channel[:, None] * (GROUP // 2) + o_byte[None, :], b_packed, mask=known)


@triton.jit
def append_quantised_kernel(
    p_q, p_k, p_v, p_cos, p_sin, p_q_norm, p_k_norm, p_positions, p_out, p_k_store, p_v_store,
    p_k_scale, p_v_scale, p_codes_k, p_k_least, p_codes_v, p_v_least, p_minimum, p_maximum,
    q_batch, q_head, q_dim, k_batch, k_head, k_dim, v_batch, v_head, v_dim, cos_batch, sin_batch,
    list_stride, bound_stride, q_heads, kv_heads, groups, eps,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, RUNS: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr,
    BITS: tl.constexpr, V_BLOCK: tl.constexpr, PAGE_SIZE: tl.constexpr, LISTED: tl.constexpr, GROUP: tl.constexpr,
    RECENT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotate one head: ``(x_1 cos - x_2 sin, x_2 cos + x_1 sin)``; a key head also stores its key and value.

    Grid ``(Hq + Hkv, B)``, query heads first. Eight bits: the nearest e4m3 of ``x / scale`` goes to the token's place
    in ``p_k_store`` ``[B, Hkv, N * V_BLOCK, D]`` and ``p_v_store`` ``[B, Hkv, N, D, V_BLOCK]``, and with ``PAGE_SIZE``
    widens its page's bounds ``[B, Hkv, P, D]`` of codes. Four bits: the token
    goes to its slot of the recent ones, ``p_k_store`` and ``p_v_store`` ``[B, Hkv, RECENT, D]``; where it completes a
    group, the group before is packed (``pack_group``), none of whose slots the token takes. Formats as in ``naive.py``.
    Queries, keys, values of any strides over batch, head and channel; ``p_out`` ``[B, Hq, 1, D]`` contiguous. Moves
    ``2 * B * (Hq + Hkv) * D`` elements, and every 64th token ``B * Hkv * 64 * 5 D`` bytes and more.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 34; Liu et al. 2024, KIVI (arXiv 2402.02750), section 3.2.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    o_half = tl.arange(0, BLOCK_HALF)
    inside = o_half < HALF
    DIM: tl.constexpr = 2 * HALF
    let_next_start(PDL)
    wait_for_earlier(PDL)
    b_cos = tl.load(p_cos + i_batch * cos_batch + o_half, mask=inside, other=0.0).to(tl.float32)
    b_sin = tl.load(p_sin + i_batch * sin_batch + o_half, mask=inside, other=0.0).to(tl.float32)
    dtype = p_out.dtype.element_ty
    if i_head < q_heads:
        p_from = p_q + i_batch * q_batch + i_head * q_head
        b_first, b_second = norm_rope(p_from, q_dim, p_q_norm, o_half, b_cos, b_sin, eps, HALF, Q_NORM, dtype)
        p_rotated = p_out + (i_batch * q_heads + i_head) * DIM + o_half
        tl.store(p_rotated, b_first, mask=inside)
        tl.store(p_rotated + HALF, b_second, mask=inside)
    else:
        i_kv = i_head - q_heads
        i_list = i_batch * kv_heads + i_kv
        position = tl.load(p_positions + i_batch)
        p_key = p_k + i_batch * k_batch + i_kv * k_head
        b_first, b_second = norm_rope(p_key, k_dim, p_k_norm, o_half, b_cos, b_sin, eps, HALF, K_NORM, dtype)
        p_value = p_v + i_batch * v_batch + i_kv * v_head
        b_low = tl.load(p_value + o_half * v_dim, mask=inside, other=0.0)
        b_high = tl.load(p_value + (o_half + HALF) * v_dim, mask=inside, other=0.0)
        p_k_store += i_list * list_stride
        p_v_store += i_list * list_stride
        if BITS == 8:
            p_scale = p_k_scale + i_list * DIM + o_half
            v_scale = tl.load(p_v_scale + i_list)
            p_codes = p_k_store + position * DIM + o_half
            b_key = store_codes(p_codes, b_first, tl.load(p_scale, mask=inside, other=1.0), inside)
            b_turned = store_codes(p_codes + HALF, b_second, tl.load(p_scale + HALF, mask=inside, other=1.0), inside)
            if PAGE_SIZE:
                fresh = position % PAGE_SIZE == 0
                o_page = i_list * bound_stride + position // PAGE_SIZE * DIM
                widen(p_minimum + o_page, 1, b_key, o_half, inside, fresh, MAXIMUM=False)
                widen(p_minimum + o_page + HALF, 1, b_turned, o_half, inside, fresh, MAXIMUM=False)
                widen(p_maximum + o_page, 1, b_key, o_half, inside, fresh, MAXIMUM=True)
                widen(p_maximum + o_page + HALF, 1, b_turned, o_half, inside, fresh, MAXIMUM=True)
            p_codes = p_v_store + position // V_BLOCK * (DIM * V_BLOCK) + position % V_BLOCK + o_half * V_BLOCK
            store_codes(p_codes, b_low, v_scale, inside)
            store_codes(p_codes + HALF * V_BLOCK, b_high, v_scale, inside)
            # Attention to chosen blocks loads blocks of values whole; that to everything masks tokens.
            if V_BLOCK <= LISTED:  # noqa: SIM102 (known when compiling; the other is not)
                if position % V_BLOCK == 0:
                    o_behind = tl.arange(0, V_BLOCK)[None, :]
                    b_zeros = tl.zeros([BLOCK_HALF, V_BLOCK], dtype=tl.float32).to(p_v_store.dtype.element_ty)
                    behind = inside[:, None] & (o_behind > 0)
                    p_behind = p_v_store + position * DIM + o_half[:, None] * V_BLOCK + o_behind
                    tl.store(p_behind, b_zeros, mask=behind)
                    tl.store(p_behind + HALF * V_BLOCK, b_zeros, mask=behind)
        else:
            slot = position % RECENT * DIM
            tl.store(p_k_store + slot + o_half, b_first, mask=inside)
            tl.store(p_k_store + slot + HALF + o_half, b_second, mask=inside)
            tl.store(p_v_store + slot + o_half, b_low, mask=inside)
            tl.store(p_v_store + slot + HALF + o_half, b_high, mask=inside)
            count = position + 1
            if (count % GROUP == 0) & (count >= RECENT):
                i_group = i_list * groups + count // GROUP - 2
                pack_group(
                    p_k_store, p_v_store, p_codes_k + i_group * (GROUP * HALF), p_k_scale + i_group * DIM,
                    p_k_least + i_group * DIM, p_codes_v + i_group * (DIM * (GROUP // 2)),
                    p_v_scale + i_group * (RUNS * GROUP), p_v_least + i_group * (RUNS * GROUP), count % RECENT,
                    DIM, BLOCK_HALF, RUNS, GROUP,
                )  # fmt: skip


@triton.jit
def store_codes(p_to, b_x, scale, inside):
    """Write the nearest e4m3 of ``x / scale``, the largest where it is beyond; return it in float32."""
    b_scaled = tl.div_rn(b_x.to(tl.float32), scale + b_x.to(tl.float32) * 0.0)
    b_scaled = tl.minimum(tl.maximum(b_scaled, -448.0), 448.0)
    b_codes = b_scaled.to(p_to.dtype.element_ty)
    tl.store(p_to, b_codes, mask=inside)
    return b_codes.to(tl.float32)


def append_quantised_gpu(
    layer: Fp8Layer | Int4Layer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    bounds: PageBounds | None = None,
    page_size: int = 0,
) -> Tensor:
    """Rotate, quantise and store as in ``naive.append_quantised``, in one launch.

    Args:
        layer: changed in place; contiguous.
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16, any strides.
        k: ``[B, Hkv, 1, D]`` in ``q``'s dtype.
        v: ``[B, Hkv, 1, D]``, likewise.
        cos: ``[B or 1, 1, D]`` contiguous in ``D``.
        sin: likewise.
        positions: ``[B]`` int64.
        q_norm: ``[D]``, weight of the queries' norm.
        k_norm: ``[D]``, weight of the keys' norm.
        eps: added to the mean square of both.
        bounds: of the codes of keys in eight bits, contiguous, changed in place.
        page_size: tokens in a page of ``bounds``.

    Returns:
        The rotated queries, ``[B, Hq, 1, D]``, contiguous.
    """
    (batch, heads, _, dim), kv_heads = q.shape, k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    cos, sin = cos.expand(batch, 1, dim), sin.expand(batch, 1, dim)
    if isinstance(layer, Fp8Layer):
        bits, groups, v_block = 8, 0, layer.v.shape[4]
        stores = (layer.k, layer.v, layer.k_scale, layer.v_scale, *[layer.k_scale] * 4)
    else:
        bits, groups, v_block = 4, layer.k.shape[2], 1
        stores = (
            layer.recent_k, layer.recent_v, layer.k_scale, layer.v_scale, layer.k, layer.k_least, layer.v,
            layer.v_least,
        )  # fmt: skip
    half, page_size = dim // 2, 0 if bounds is None else page_size
    low, high = bounds or (layer.k, layer.k)
    norms = [x if norm is None else norm.contiguous() for x, norm in ((q, q_norm), (k, k_norm))]
    strides = [stride for x in (q, k, v) for stride in (x.stride(0), x.stride(1), x.stride(3))]
    with torch.cuda.device_of(q):
        append_quantised_kernel[(heads + kv_heads, batch)](
            q, k, v, cos, sin, *norms, positions.contiguous(), out, *stores, low, high, *strides, cos.stride(0),
            sin.stride(0), stores[0].stride(1), low.stride(1), heads, kv_heads, groups, eps,
            HALF=half, BLOCK_HALF=power_of_two(half), RUNS=power_of_two(-(-dim // GROUP)), Q_NORM=q_norm is not None,
            K_NORM=k_norm is not None, BITS=bits, V_BLOCK=v_block, PAGE_SIZE=page_size, LISTED=LISTED_V_BLOCK,
            GROUP=GROUP, RECENT=RECENT, num_warps=1 if bits == 8 else 4, **overlap_settings(True, q.device),
        )  # fmt: skip
    return out
