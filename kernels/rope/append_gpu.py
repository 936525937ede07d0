"""Rotation and cache append of a block of tokens as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.page_minmax.gpu import update_page_minmax_gpu
from longdecode.kernels.rope.naive import check_bounds, expand_slots


@dataclass(frozen=True, slots=True)
class Launch:
    """Warps for each head of a token; ``launch_pdl``: start before the kernels ahead end (``kernels/overlap.py``)."""

    num_warps: int = 1
    launch_pdl: bool = True


def choose_launch() -> Launch:
    """Choose one warp a head: 64 pairs are two a lane, and the sum of the norm stays inside the warp."""
    return Launch()


@triton.jit
def norm_rope(
    p_x, x_dim, p_norm, o_half, b_cos, b_sin, eps, HALF: tl.constexpr, NORM: tl.constexpr, dtype: tl.constexpr
):
    """Return one head's pairs ``(x_i, x_{i + D/2})``, normalised where asked, rotated and rounded to the dtype."""
    inside = o_half < HALF
    b_low = tl.load(p_x + o_half * x_dim, mask=inside, other=0.0).to(tl.float32)
    b_high = tl.load(p_x + (o_half + HALF) * x_dim, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        b_factor = tl.rsqrt((tl.sum(b_low * b_low, 0) + tl.sum(b_high * b_high, 0)) / (2 * HALF) + eps)
        b_low_weight = tl.load(p_norm + o_half, mask=inside, other=0.0).to(tl.float32)
        b_high_weight = tl.load(p_norm + HALF + o_half, mask=inside, other=0.0).to(tl.float32)
        # Rounded where the separate op rounds: after the quotient and after the weight.
        b_low = (b_low_weight * (b_low * b_factor).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        b_high = (b_high_weight * (b_high * b_factor).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    b_first = (b_low * b_cos - b_high * b_sin).to(dtype)
    b_second = (b_high * b_cos + b_low * b_sin).to(dtype)
    return b_first, b_second


@triton.jit
def widen(p_bound, stride_dim, b_key, o_dim, inside, fresh, MAXIMUM: tl.constexpr):
    """Widen one bound of a page by a key, or replace it where the key is the page's first."""
    p = p_bound + o_dim * stride_dim
    # A fresh page's old bounds are not read: they may hold anything.
    b_old = tl.load(p, mask=inside & (fresh == 0), other=0.0).to(b_key.dtype)
    b_new = tl.maximum(b_old, b_key) if MAXIMUM else tl.minimum(b_old, b_key)
    tl.store(p, tl.where(fresh, b_key, b_new).to(p_bound.dtype.element_ty), mask=inside)


@triton.jit
def rope_append_kernel(
    p_q, p_k, p_v, p_cos, p_sin, p_q_norm, p_k_norm, p_slots, p_out, p_k_cache, p_v_cache, p_minimum, p_maximum,
    q_batch, q_head, q_token, q_dim, k_batch, k_head, k_token, k_dim, v_batch, v_head, v_token, v_dim,
    cos_batch, cos_token, cos_dim, sin_batch, sin_token, sin_dim, slot_batch, slot_head, slot_token,
    kc_batch, kc_head, kc_token, kc_dim, vc_batch, vc_head, vc_token, vc_dim,
    low_batch, low_head, low_page, low_dim, high_batch, high_head, high_page, high_dim,
    q_heads, tokens, capacity, pages, eps,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotate one head: ``(x_1 cos - x_2 sin, x_2 cos + x_1 sin)``; a key head also stores its key and value.

    Grid ``(Hq + Hkv, B, T)``, query heads first. ``p_q`` ``[B, Hq, T, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, T, D]``,
    caches ``[B, Hkv, S, D]``, bounds ``[B, Hkv, P, D]`` in one of float32, float16 and bfloat16, ``p_cos`` and
    ``p_sin`` ``[B, T, D]``, of which the first half is read, ``p_slots`` ``[B, Hkv, T]`` int64, any strides (the
    arguments named by tensor and axis, in elements); norms ``[D]`` and ``p_out`` ``[B, Hq, T, D]`` contiguous. With
    ``PAGE_SIZE``, which takes ``T = 1``, the page's bounds are widened by the key. Products run in float32. Moves
    ``2 * B * T * (Hq + 2 * Hkv) * D`` elements, and ``4 * B * Hkv * D`` for bounds.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 34, in the split-half order; Tang et al. 2024, Quest
    (arXiv 2406.10774), section 3.3.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    # A constant where there is one token, so that no token stride is multiplied.
    i_token = tl.program_id(2).to(tl.int64) if BLOCK else 0
    o_half = tl.arange(0, BLOCK_HALF)
    inside = o_half < HALF
    let_next_start(PDL)
    wait_for_earlier(PDL)
    p_cos += i_batch * cos_batch + i_token * cos_token
    p_sin += i_batch * sin_batch + i_token * sin_token
    b_cos = tl.load(p_cos + o_half * cos_dim, mask=inside, other=0.0).to(tl.float32)
    b_sin = tl.load(p_sin + o_half * sin_dim, mask=inside, other=0.0).to(tl.float32)
    dtype = p_out.dtype.element_ty
    if i_head < q_heads:
        p_from = p_q + i_batch * q_batch + i_head * q_head + i_token * q_token
        b_first, b_second = norm_rope(p_from, q_dim, p_q_norm, o_half, b_cos, b_sin, eps, HALF, Q_NORM, dtype)
        p_to = p_out + ((i_batch * q_heads + i_head) * tokens + i_token) * 2 * HALF + o_half
        tl.store(p_to, b_first, mask=inside)
        tl.store(p_to + HALF, b_second, mask=inside)
    else:
        i_kv = i_head - q_heads
        i_slot = tl.load(p_slots + i_batch * slot_batch + i_kv * slot_head + i_token * slot_token)
        stored = inside & (i_slot >= 0) & (i_slot < capacity)
        p_value = p_v + i_batch * v_batch + i_kv * v_head + i_token * v_token
        b_low = tl.load(p_value + o_half * v_dim, mask=inside, other=0.0)
        b_high = tl.load(p_value + (o_half + HALF) * v_dim, mask=inside, other=0.0)
        p_value_slot = p_v_cache + i_batch * vc_batch + i_kv * vc_head + i_slot * vc_token
        tl.store(p_value_slot + o_half * vc_dim, b_low, mask=stored)
        tl.store(p_value_slot + (o_half + HALF) * vc_dim, b_high, mask=stored)
        p_key = p_k + i_batch * k_batch + i_kv * k_head + i_token * k_token
        b_key, b_turned = norm_rope(p_key, k_dim, p_k_norm, o_half, b_cos, b_sin, eps, HALF, K_NORM, dtype)
        p_key_slot = p_k_cache + i_batch * kc_batch + i_kv * kc_head + i_slot * kc_token
        tl.store(p_key_slot + o_half * kc_dim, b_key, mask=stored)
        tl.store(p_key_slot + (o_half + HALF) * kc_dim, b_turned, mask=stored)
        if PAGE_SIZE:
            widened = inside & (i_slot >= 0) & (i_slot < pages * PAGE_SIZE)
            i_page = i_slot // PAGE_SIZE
            fresh = i_slot % PAGE_SIZE == 0
            p_low = p_minimum + i_batch * low_batch + i_kv * low_head + i_page * low_page
            p_high = p_maximum + i_batch * high_batch + i_kv * high_head + i_page * high_page
            widen(p_low, low_dim, b_key, o_half, widened, fresh, MAXIMUM=False)
            widen(p_low + HALF * low_dim, low_dim, b_turned, o_half, widened, fresh, MAXIMUM=False)
            widen(p_high, high_dim, b_key, o_half, widened, fresh, MAXIMUM=True)
            widen(p_high + HALF * high_dim, high_dim, b_turned, o_half, widened, fresh, MAXIMUM=True)


def rope_append_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    bounds: PageBounds | None = None,
    page_size: int = 0,
    launch: Launch | None = None,
) -> Tensor:
    """Rotate ``T`` tokens and append them as in ``naive.rope_append``, in one launch, any strides.

    Page bounds of more than one token take a second launch, which reads the stored keys. Serves pieces of a prompt too:
    a warp moves one head of one token.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, T, D]`` in ``q``'s dtype, as are all tensors but the angles.
        v: ``[B, Hkv, T, D]``.
        cos: ``[B or 1, T, D]``, the ``D / 2`` cosines written twice.
        sin: likewise.
        k_cache: ``[B, Hkv, S, D]``, changed in place.
        v_cache: ``[B, Hkv, S, D]``, likewise.
        slot_mapping: ``[B, T]``, ``[B, Hkv, T]``, or ``[B]`` for one token, int64; outside the cache stores nothing.
        q_norm: ``[D]``, weight of the queries' norm.
        k_norm: ``[D]``, weight of the keys' norm.
        eps: added to the mean square of both.
        bounds: pages of ``k_cache``, changed in place; the slots of a row and head then ascend by one.
        page_size: tokens in a page of ``bounds``.
        launch: how; by ``choose_launch`` when left out.

    Returns:
        The rotated queries, ``[B, Hq, T, D]``, contiguous.

    Raises:
        ValueError: bounds without a page size, slots or tokens that do not fit, or dtypes that differ.
    """
    check_bounds(bounds, page_size)
    batch, heads, tokens, dim = q.shape
    slots = expand_slots(slot_mapping, k)
    if k.shape[2] != tokens:
        raise ValueError(f"queries of {tokens} tokens, keys of {k.shape[2]}")
    given = {x.dtype for x in (q, k, v, k_cache, v_cache, q_norm, k_norm, *(bounds or ())) if x is not None}
    if len(given) > 1:
        raise ValueError(f"queries, keys, values, norms, caches and bounds need one dtype, got {given}")
    launch = launch or choose_launch()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not batch * tokens:
        return out
    cos, sin = cos.expand(batch, tokens, dim), sin.expand(batch, tokens, dim)
    low, high = (k_cache, k_cache) if bounds is None else bounds
    strides = [s for x in (q, k, v, cos, sin, slots, k_cache, v_cache, low, high) for s in x.stride()]
    half = dim // 2
    norms = [x if norm is None else norm.contiguous() for x, norm in ((q, q_norm), (k, k_norm))]
    with torch.cuda.device_of(q):
        rope_append_kernel[(heads + k.shape[1], batch, tokens)](
            q, k, v, cos, sin, *norms, slots, out, k_cache, v_cache, low, high, *strides,
            heads, tokens, k_cache.shape[2], low.shape[2], eps,
            HALF=half, BLOCK_HALF=triton.next_power_of_2(half), Q_NORM=q_norm is not None, K_NORM=k_norm is not None,
            PAGE_SIZE=page_size if bounds is not None and tokens == 1 else 0, BLOCK=tokens > 1,
            num_warps=launch.num_warps, **overlap_settings(launch.launch_pdl, q.device),
        )  # fmt: skip
    if bounds is not None and tokens > 1:
        update_page_minmax_gpu(bounds, k_cache, slots, page_size)
    return out
