"""Block-sparse attention with a gradient: FlexAttention on a GPU, torch on a CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

_TILE = 128
"""Queries and keys that one tile of FlexAttention covers."""
_CHANNELS = 16
"""Channels that carry the bias: 16 keep the head size a multiple of what matrix units take."""


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, block_size: int, bias: Tensor | None, scale: float
) -> Tensor:
    """Return causal attention over the blocks that each row reads, differentiable in all but the choice.

    Args:
        q: ``[B, Hq, T, D]``.
        k: ``[B, Hkv, T, D]``.
        v: ``[B, Hkv, T, D]``.
        read: ``[B, Hkv, T, N]`` bool.
        block_size: tokens in a block.
        bias: ``[B, Hkv, T]`` added to the scaled logits, or ``None``.
        scale: factor on the products of queries and keys.

    Returns:
        ``[B, Hq, T, D]`` in ``q``'s dtype.
    """
    if q.device.type == "cuda":
        return flex_sparse_attention(q, k, v, read, block_size, bias, scale)
    grouped = q.unflatten(1, (k.shape[1], -1))
    logits = (grouped @ k[:, :, None].transpose(-1, -2)).float() * scale
    if bias is not None:
        logits = logits + bias[:, :, None, None]
    seen = read.repeat_interleave(block_size, dim=3)[..., : k.shape[2]].tril()
    weights = logits.masked_fill(~seen[:, :, None], float("-inf")).softmax(dim=-1)
    return (weights.to(v.dtype) @ v[:, :, None]).flatten(1, 2)


def flex_sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, block_size: int, bias: Tensor | None, scale: float
) -> Tensor:
    """Return the same through FlexAttention, which skips tiles that no row of theirs reads.

    The bias rides in channels of its own, as ``q' = (q, 1, 1)`` and ``k' = (k, b / scale)`` with the quotient split in
    two terms of the keys' dtype: so its gradient comes out of the keys' matrix product. As a captured tensor of
    ``score_mod`` it would be summed by one atomic addition a query, key and head.
    """
    from torch.nn.attention.flex_attention import BlockMask

    (batch, heads, tokens, dim), group = q.shape, q.shape[1] // k.shape[1]
    if bias is not None:
        wanted = bias / scale
        high = wanted.to(k.dtype)
        low = (wanted - high.float()).detach().to(k.dtype)
        ones = q.new_ones(batch, heads, tokens, 2)
        q = pad(torch.cat((q, ones), dim=-1), (0, _CHANNELS - 2))
        k = pad(torch.cat((k, high[..., None], low[..., None]), dim=-1), (0, _CHANNELS - 2))

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & read[b, h // group, i, j // block_size]

    numbers, indices = tiles_read(read, block_size, tokens)
    mask = BlockMask.from_kv_blocks(
        numbers.repeat_interleave(group, dim=1), indices.repeat_interleave(group, dim=1),
        BLOCK_SIZE=_TILE, mask_mod=visible, seq_lengths=(tokens, tokens),
    )  # fmt: skip
    out: Tensor = _flex(q.device.type)(q, k, v, block_mask=mask, scale=scale, enable_gqa=group > 1)
    return out[..., :dim]


def tiles_read(read: Tensor, block_size: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return how many tiles of keys each tile of queries reads, and which, those first.

    Args:
        read: ``[B, H, T, N]`` bool.
        block_size: tokens in a block, which divides the tile or is divided by it.
        tokens: ``T``, a multiple of the tile or less than one.

    Returns:
        ``[B, H, T']`` and ``[B, H, T', T']`` int32, ``T' = ceil(T / 128)``.
    """
    tiles = -(-tokens // _TILE)
    rows = pad(read, (0, 0, 0, tiles * _TILE - tokens)).unflatten(2, (tiles, _TILE)).any(dim=3)
    if block_size <= _TILE:
        blocks = _TILE // block_size
        found = pad(rows, (0, tiles * blocks - rows.shape[3])).unflatten(3, (tiles, blocks)).any(dim=4)
    else:
        found = rows.repeat_interleave(block_size // _TILE, dim=3)[..., :tiles]
    found = found.tril()  # nothing past the diagonal is read
    numbers = found.sum(dim=-1, dtype=torch.int32)
    return numbers, found.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)


@lru_cache(maxsize=2)
def _flex(device: str) -> Any:
    """Return FlexAttention, compiled once where there is a GPU."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False) if device == "cuda" else flex_attention
