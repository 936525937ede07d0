"""Rotary embedding as a Triton kernel: queries and keys in one launch."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_HEADS = 8


@triton.jit
def rotate_heads(p_x, p_out, o_head, heads, x_head, x_dim, out_head, b_cos, b_sin, HALF: tl.constexpr, o_half):
    """Rotate one token's heads ``[BLOCK_HEADS, 2 * HALF]`` by ``b_cos``, ``b_sin`` ``[BLOCK_HALF]``."""
    inside = (o_head < heads)[:, None] & (o_half < HALF)[None, :]
    o_x = o_head[:, None] * x_head + o_half[None, :] * x_dim
    o_out = o_head[:, None] * out_head + o_half[None, :]
    b_first = tl.load(p_x + o_x, mask=inside, other=0.0).to(tl.float32)
    b_second = tl.load(p_x + o_x + HALF * x_dim, mask=inside, other=0.0).to(tl.float32)
    b_low = b_first * b_cos[None, :] - b_second * b_sin[None, :]
    b_high = b_second * b_cos[None, :] + b_first * b_sin[None, :]
    tl.store(p_out + o_out, b_low.to(p_out.dtype.element_ty), mask=inside)
    tl.store(p_out + o_out + HALF, b_high.to(p_out.dtype.element_ty), mask=inside)


@triton.jit
def rope_kernel(
    p_q, p_k, p_cos, p_sin, p_q_out, p_k_out,
    q_batch, q_head, q_token, q_dim, k_batch, k_head, k_token, k_dim,
    cos_batch, cos_token, cos_dim, sin_batch, sin_token, sin_dim,
    tokens, q_heads, k_heads, out_head,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr,
):  # fmt: skip
    """Turn each pair ``(x_i, x_{i + D/2})`` by its angle: ``(x_1 cos - x_2 sin, x_2 cos + x_1 sin)``.

    Grid ``(B * T, head tiles of q and then of k)``. ``p_q`` ``[B, Hq, T, D]`` and ``p_k`` ``[B, Hkv, T, D]`` float32,
    float16 or bfloat16 and ``p_cos``, ``p_sin`` ``[B, T, D]``, of which the first half is read; any strides (in
    elements); outputs contiguous. Products run in float32. Moves ``2 * B * T * (Hq + Hkv) * D`` elements.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 34, in the split-half order.
    """
    i_batch = (tl.program_id(0) // tokens).to(tl.int64)
    i_token = (tl.program_id(0) % tokens).to(tl.int64)
    i_tile = tl.program_id(1)
    q_tiles = tl.cdiv(q_heads, BLOCK_HEADS)
    o_half = tl.arange(0, BLOCK_HALF)
    p_cos += i_batch * cos_batch + i_token * cos_token
    p_sin += i_batch * sin_batch + i_token * sin_token
    b_cos = tl.load(p_cos + o_half * cos_dim, mask=o_half < HALF, other=0.0).to(tl.float32)
    b_sin = tl.load(p_sin + o_half * sin_dim, mask=o_half < HALF, other=0.0).to(tl.float32)
    if i_tile < q_tiles:
        o_head = (i_tile * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)).to(tl.int64)
        p_from = p_q + i_batch * q_batch + i_token * q_token
        p_to = p_q_out + i_batch * q_heads * out_head + i_token * (2 * HALF)
        rotate_heads(p_from, p_to, o_head, q_heads, q_head, q_dim, out_head, b_cos, b_sin, HALF, o_half)
    else:
        o_head = ((i_tile - q_tiles) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)).to(tl.int64)
        p_from = p_k + i_batch * k_batch + i_token * k_token
        p_to = p_k_out + i_batch * k_heads * out_head + i_token * (2 * HALF)
        rotate_heads(p_from, p_to, o_head, k_heads, k_head, k_dim, out_head, b_cos, b_sin, HALF, o_half)


def apply_rope_gpu(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions as in ``naive.apply_rope``, in one launch.

    Args:
        q: ``[B, Hq, T, D]``, float32, float16 or bfloat16, any strides.
        k: ``[B, Hkv, T, D]``, likewise.
        cos: ``[B or 1, T or 1, D]``, the ``D / 2`` cosines written twice.
        sin: likewise.

    Returns:
        Both, rotated, in their own dtypes, contiguous.
    """
    batch, q_heads, tokens, dim = q.shape
    k_heads = k.shape[1]
    outs = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    if not q.numel():
        return outs[0], outs[1]
    cos, sin = cos.expand(batch, tokens, dim), sin.expand(batch, tokens, dim)
    half = dim // 2
    with torch.cuda.device_of(q):
        rope_kernel[(batch * tokens, triton.cdiv(q_heads, _HEADS) + triton.cdiv(k_heads, _HEADS))](
            q, k, cos, sin, *outs, *q.stride(), *k.stride(), *cos.stride(), *sin.stride(),
            tokens, q_heads, k_heads, tokens * dim,
            HALF=half, BLOCK_HALF=triton.next_power_of_2(half), BLOCK_HEADS=_HEADS, num_warps=4,
        )  # fmt: skip
    return outs[0], outs[1]


def rotate_gpu(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate one tensor ``[B, H, T, D]`` as in ``naive.rotate``; see ``apply_rope_gpu``."""
    return apply_rope_gpu(x, x[:, :0], cos, sin)[0]
