"""Rotation, cache append and page bounds of a window of tokens as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.page_minmax.naive import touched_pages


@triton.jit
def norm_rope_rows(
    b_low, b_high, p_norm, o_half, b_cos, b_sin, eps, HALF: tl.constexpr, NORM: tl.constexpr, dtype: tl.constexpr
):
    """Return one head's pairs ``(x_i, x_{i + D/2})`` of rows ``[T, 1]``, normalised where asked, rotated, rounded."""
    b_low, b_high = b_low.to(tl.float32), b_high.to(tl.float32)
    if NORM:
        b_factor = tl.rsqrt((tl.sum(b_low * b_low, 1) + tl.sum(b_high * b_high, 1)) / (2 * HALF) + eps)[:, None]
        b_low_weight = tl.load(p_norm + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
        b_high_weight = tl.load(p_norm + HALF + o_half, mask=o_half < HALF, other=0.0).to(tl.float32)[None, :]
        # Rounded where the separate op rounds: after the quotient and after the weight.
        b_low = (b_low_weight * (b_low * b_factor).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        b_high = (b_high_weight * (b_high * b_factor).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    return (b_low * b_cos - b_high * b_sin).to(dtype), (b_high * b_cos + b_low * b_sin).to(dtype)


@triton.jit
def bound_half(p_least, p_most, b_old, cached, b_new, fresh, stored):
    """Write half the channels of pages' bounds, from cached keys ``[P, S, D/2]`` and the window's ``[T, D/2]``."""
    b_old = b_old.to(tl.float32)
    b_new = b_new.to(tl.float32)[None, :, :]
    b_least = tl.minimum(tl.min(tl.where(cached[:, :, None], b_old, float("inf")), 1),
                         tl.min(tl.where(fresh[:, :, None], b_new, float("inf")), 1))  # fmt: skip
    b_most = tl.maximum(tl.max(tl.where(cached[:, :, None], b_old, float("-inf")), 1),
                        tl.max(tl.where(fresh[:, :, None], b_new, float("-inf")), 1))  # fmt: skip
    tl.store(p_least, b_least.to(p_least.dtype.element_ty), mask=stored)
    tl.store(p_most, b_most.to(p_most.dtype.element_ty), mask=stored)


@triton.jit
def append_window_kernel(
    p_q, p_k, p_v, p_cos, p_sin, p_q_norm, p_k_norm, p_slots, p_lengths, p_out, p_k_cache, p_v_cache, p_minimum,
    p_maximum,
    q_batch, q_head, q_token, q_dim, k_batch, k_head, k_token, k_dim, v_batch, v_head, v_token, v_dim,
    cos_batch, cos_token, cos_dim, sin_batch, sin_token, sin_dim,
    kc_batch, kc_head, kc_token, kc_dim, vc_batch, vc_head, vc_token, vc_dim,
    m_batch, m_head, m_page, m_dim, x_batch, x_head, x_page, x_dim, q_heads, capacity, pages, eps,
    TOKENS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_PAGE: tl.constexpr,
    TOUCHED: tl.constexpr, BLOCK_TOUCHED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotate one head's ``T`` tokens: ``(x_1 cos - x_2 sin, x_2 cos + x_1 sin)``; a key head stores keys and values.

    It then writes ``m_j = min_{i in page j} k_i`` and ``M_j`` of the pages that slots ``length - T .. length - 1``
    touch, from the keys at hand and, for the other slots of a page, from the cache: what it stores it does not read.
    All loads come before the first store, so that none waits for another.

    Grid ``(Hq + Hkv, B)``, query heads first. ``p_q`` ``[B, Hq, T, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, T, D]``, caches
    ``[B, Hkv, S, D]``, bounds ``[B, Hkv, P, D]`` (strides ``m_*`` and ``x_*``) in one of float32, float16 and bfloat16,
    ``p_cos`` and ``p_sin`` ``[B, T, D]``, of which the first half is read, any strides; ``p_slots`` ``[B, T]`` and
    ``p_lengths`` ``[B]`` int64, norms ``[D]`` and ``p_out`` ``[B, Hq, T, D]`` contiguous. Products run in float32.
    Moves ``2 * B * T * (Hq + 2 * Hkv) * D`` elements, and ``B * Hkv * TOUCHED * (PAGE_SIZE + 2) * D`` for bounds.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 34, in the split-half order; Tang et al. 2024, Quest
    (arXiv 2406.10774), section 3.3.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    o_token = tl.arange(0, BLOCK_TOKENS)
    o_half = tl.arange(0, BLOCK_HALF)
    fed = o_token < TOKENS
    half = o_half < HALF
    inside = fed[:, None] & half[None, :]
    let_next_start(PDL)
    wait_for_earlier(PDL)
    p_cos += i_batch * cos_batch + o_token[:, None] * cos_token + (o_half * cos_dim)[None, :]
    p_sin += i_batch * sin_batch + o_token[:, None] * sin_token + (o_half * sin_dim)[None, :]
    b_cos = tl.load(p_cos, mask=inside, other=0.0).to(tl.float32)
    b_sin = tl.load(p_sin, mask=inside, other=0.0).to(tl.float32)
    dtype = p_out.dtype.element_ty
    if i_head < q_heads:
        p_from = p_q + i_batch * q_batch + i_head * q_head + o_token[:, None] * q_token + (o_half * q_dim)[None, :]
        b_low = tl.load(p_from, mask=inside, other=0.0)
        b_high = tl.load(p_from + HALF * q_dim, mask=inside, other=0.0)
        b_low, b_high = norm_rope_rows(b_low, b_high, p_q_norm, o_half, b_cos, b_sin, eps, HALF, Q_NORM, dtype)
        p_to = p_out + ((i_batch * q_heads + i_head) * TOKENS + o_token[:, None]) * 2 * HALF + o_half[None, :]
        tl.store(p_to, b_low, mask=inside)
        tl.store(p_to + HALF, b_high, mask=inside)
    else:
        i_kv = i_head - q_heads
        b_slot = tl.load(p_slots + i_batch * TOKENS + o_token, mask=fed, other=-1)
        given = tl.load(p_lengths + i_batch)
        p_key = p_k + i_batch * k_batch + i_kv * k_head + o_token[:, None] * k_token + (o_half * k_dim)[None, :]
        b_low = tl.load(p_key, mask=inside, other=0.0)
        b_high = tl.load(p_key + HALF * k_dim, mask=inside, other=0.0)
        p_value = p_v + i_batch * v_batch + i_kv * v_head + o_token[:, None] * v_token + (o_half * v_dim)[None, :]
        b_value_low = tl.load(p_value, mask=inside, other=0.0)
        b_value_high = tl.load(p_value + HALF * v_dim, mask=inside, other=0.0)

        has_slot = (b_slot >= 0) & (b_slot < capacity)
        length = tl.minimum(given, capacity)
        o_page = tl.maximum(given - TOKENS, 0) // PAGE_SIZE + tl.arange(0, BLOCK_TOUCHED)
        o_step = tl.arange(0, BLOCK_PAGE)
        o_old = o_page[:, None] * PAGE_SIZE + o_step[None, :]
        b_replaced = tl.max((o_old[:, :, None] == b_slot[None, None, :]).to(tl.int32), 2)
        used = (tl.arange(0, BLOCK_TOUCHED) < TOUCHED) & (o_page * PAGE_SIZE < length) & (o_page < pages)
        cached = used[:, None] & (o_step < PAGE_SIZE)[None, :] & (o_old < length) & (b_replaced == 0)
        p_k_cache += i_batch * kc_batch + i_kv * kc_head
        p_old = p_k_cache + o_old[:, :, None] * kc_token + (o_half * kc_dim)[None, None, :]
        b_old_low = tl.load(p_old, mask=cached[:, :, None] & half[None, None, :], other=0.0)
        b_old_high = tl.load(p_old + HALF * kc_dim, mask=cached[:, :, None] & half[None, None, :], other=0.0)

        b_low, b_high = norm_rope_rows(b_low, b_high, p_k_norm, o_half, b_cos, b_sin, eps, HALF, K_NORM, dtype)
        stored = has_slot[:, None] & half[None, :]
        p_to = p_v_cache + i_batch * vc_batch + i_kv * vc_head + b_slot[:, None] * vc_token + (o_half * vc_dim)[None, :]
        tl.store(p_to, b_value_low, mask=stored)
        tl.store(p_to + HALF * vc_dim, b_value_high, mask=stored)
        p_to = p_k_cache + b_slot[:, None] * kc_token + (o_half * kc_dim)[None, :]
        tl.store(p_to, b_low, mask=stored)
        tl.store(p_to + HALF * kc_dim, b_high, mask=stored)

        fresh = has_slot[None, :] & (b_slot[None, :] // PAGE_SIZE == o_page[:, None]) & (b_slot < length)[None, :]
        bounded = used[:, None] & half[None, :]
        p_least = p_minimum + i_batch * m_batch + i_kv * m_head + o_page[:, None] * m_page + (o_half * m_dim)[None, :]
        p_most = p_maximum + i_batch * x_batch + i_kv * x_head + o_page[:, None] * x_page + (o_half * x_dim)[None, :]
        bound_half(p_least, p_most, b_old_low, cached, b_low, fresh, bounded)
        bound_half(p_least + HALF * m_dim, p_most + HALF * x_dim, b_old_high, cached, b_high, fresh, bounded)


def append_window_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    bounds: PageBounds,
    page_size: int,
    lengths: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate, store and bound as in ``naive.append_window``, in one launch.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16, any strides.
        k: ``[B, Hkv, T, D]`` in ``q``'s dtype, as are all tensors but the angles.
        v: ``[B, Hkv, T, D]``.
        cos: ``[B or 1, T, D]``, the ``D / 2`` cosines written twice.
        sin: likewise.
        k_cache: ``[B, Hkv, S, D]``, changed in place.
        v_cache: ``[B, Hkv, S, D]``, likewise.
        slot_mapping: ``[B, T]`` int64.
        bounds: ``[B, Hkv, P, D]`` twice, changed in place, any strides.
        page_size: tokens in a page.
        lengths: ``[B]`` int64.
        q_norm: ``[D]``, weight of the queries' norm.
        k_norm: ``[D]``, weight of the keys' norm.
        eps: added to the mean square of both.

    Returns:
        The rotated queries, ``[B, Hq, T, D]``, contiguous.

    Raises:
        ValueError: slots or tokens that do not fit, or dtypes that differ.
    """
    batch, heads, tokens, dim = q.shape
    if k.shape[2] != tokens or slot_mapping.shape != (batch, tokens):
        raise ValueError(f"queries of {tokens} tokens, keys of {k.shape[2]}, slots {tuple(slot_mapping.shape)}")
    given = {x.dtype for x in (q, k, v, k_cache, v_cache, q_norm, k_norm, *bounds) if x is not None}
    if len(given) > 1:
        raise ValueError(f"queries, keys, values, norms, caches and bounds need one dtype, got {given}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    cos, sin = cos.expand(batch, tokens, dim), sin.expand(batch, tokens, dim)
    strides = [s for x in (q, k, v, cos, sin, k_cache, v_cache, *bounds) for s in x.stride()]
    half, touched = dim // 2, touched_pages(tokens, page_size)
    norms = [x if norm is None else norm.contiguous() for x, norm in ((q, q_norm), (k, k_norm))]
    with torch.cuda.device_of(q):
        append_window_kernel[(heads + k.shape[1], batch)](
            q, k, v, cos, sin, *norms, slot_mapping.contiguous(), lengths.contiguous(), out, k_cache, v_cache, *bounds,
            *strides, heads, k_cache.shape[2], bounds.minimum.shape[2], eps,
            TOKENS=tokens, BLOCK_TOKENS=triton.next_power_of_2(tokens), HALF=half,
            BLOCK_HALF=triton.next_power_of_2(half), Q_NORM=q_norm is not None, K_NORM=k_norm is not None,
            PAGE_SIZE=page_size, BLOCK_PAGE=triton.next_power_of_2(page_size),
            TOUCHED=touched, BLOCK_TOUCHED=triton.next_power_of_2(touched),
            num_warps=4 if max(tokens, page_size) > 16 else 1, **overlap_settings(True, q.device),
        )  # fmt: skip
    return out
