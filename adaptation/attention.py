"""Block-sparse attention with a gradient: masked, a stretch of queries at a time, the bias in channels of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad

_STRETCH = 1024
"""Queries at once: they need no keys after their last one, which over a document saves up to half of the products."""
_CHANNELS = 16
"""Channels that carry the bias: 16 keep the head size a multiple of what matrix units take."""
_UNREAD = -30_000.0
"""Logit of a token that is not read: its weight is 0 exactly, and no infinity meets another."""
_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Those that take a mask with a gradient for queries, keys and values; the second is what a CPU has."""


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, block_size: int, bias: Tensor | None, scale: float
) -> Tensor:
    """Return causal attention over the blocks that each row reads, differentiable in all but the choice.

    The bias rides in channels of its own, as ``q' = (q, 1, 1)`` and ``k' = (k, b / scale)`` with the quotient split in
    two terms of the keys' dtype: so its gradient comes out of the keys' matrix product, and no mask needs one.

    Args:
        q: ``[B, Hq, T, D]``.
        k: ``[B, Hkv, T, D]``.
        v: ``[B, Hkv, T, D]``.
        read: ``[B, Hkv, T, N]`` bool; every row reads something.
        block_size: tokens in a block.
        bias: ``[B, Hkv, T]`` added to the scaled logits, or ``None``.
        scale: factor on the products of queries and keys.

    Returns:
        ``[B, Hq, T, D]`` in ``q``'s dtype.
    """
    (batch, heads, tokens, _), kv_heads = q.shape, k.shape[1]
    if bias is not None:
        wanted = bias / scale
        high = wanted.to(k.dtype)
        low = (wanted - high.float()).detach().to(k.dtype)
        q = pad(torch.cat((q, q.new_ones(batch, heads, tokens, 2)), dim=-1), (0, _CHANNELS - 2))
        k = pad(torch.cat((k, high[..., None], low[..., None]), dim=-1), (0, _CHANNELS - 2))
    group = heads // kv_heads
    # One mask serves a group: KV heads become rows of the batch, and a group's queries the heads.
    q = q.reshape(batch * kv_heads, group, tokens, -1)
    k, v = (x[:, :, None].expand(-1, -1, group, -1, -1).reshape(batch * kv_heads, group, tokens, -1) for x in (k, v))
    out = []
    for start in range(0, tokens, _STRETCH):
        stop = min(start + _STRETCH, tokens)
        known = k[:, :, :stop], v[:, :, :stop]
        mask = _mask(read[:, :, start:stop].flatten(0, 1), block_size, start, q.dtype)
        with sdpa_kernel(_BACKENDS):
            out.append(F.scaled_dot_product_attention(q[:, :, start:stop], *known, attn_mask=mask, scale=scale))
    return torch.cat(out, dim=2).reshape(batch, heads, tokens, -1)


def _mask(read: Tensor, block_size: int, start: int, dtype: torch.dtype) -> Tensor:
    """Return what is added to the logits of queries from ``start``, ``[R, 1, T, start + T]``, of ``[R, T, N]``."""
    rows, queries, blocks = read.shape
    stop = start + queries
    by_token = read[..., None].expand(rows, queries, blocks, block_size).flatten(2)[..., :stop].tril(start)
    return torch.zeros(by_token.shape, dtype=dtype, device=read.device).masked_fill_(~by_token, _UNREAD)[:, None]
