"""Attention of a prompt's rows, each over blocks of its own: tiles of rows read the union of their lists once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.sparse_decode_attention import sparse_decode_attention

__all__ = ["sparse_prefill_attention"]

TILE_ROWS = 16
"""Neighbouring queries that share one list; their selections overlap almost whole."""


def sparse_prefill_attention(
    q: Tensor, k: Tensor, v: Tensor, start: int, read: Tensor, block_size: int, bias: Tensor | None = None
) -> Tensor:
    """Return causal attention in which row ``t`` of KV head ``h`` reads the blocks ``read[:, h, t]`` alone.

    ``out_ht = sum_{i in S_ht} softmax(q_ht k_i / sqrt(D) + bias_hi) v_i`` with
    ``S_ht = {i : read_{h, t, i // block_size}, i <= start + t}``. Blocks that no row of a tile reads are never loaded.
    A row that reads nothing gives zeros.

    Args:
        q: ``[R, Hq, T, D]``, positions ``start ..``.
        k: ``[R, Hkv, S, D]`` with ``S >= start + T``.
        v: ``[R, Hkv, S, D]``.
        start: position of the first row.
        read: ``[R, Hkv, T, N]`` bool.
        block_size: tokens in a block.
        bias: ``[R, Hkv, S]`` float32 (natural logarithm), added to the scaled logits.

    Returns:
        ``[R, Hq, T, D]`` in ``q``'s dtype.

    Source: InfLLM-V2's and NOSA's prefill (thunlp/NOSA 94d5f75): block-sparse attention, one selection a token.
    """
    rows, heads, queries, dim = q.shape
    tiles = -(-queries // TILE_ROWS)
    spare = tiles * TILE_ROWS - queries
    place = torch.arange(tiles * TILE_ROWS, device=q.device).view(tiles, TILE_ROWS)
    limits = start + 1 + place.clamp(max=queries - 1)
    out = []
    for row in range(rows):
        tiled = pad(q[row], (0, 0, 0, spare)).unflatten(1, (tiles, TILE_ROWS)).transpose(0, 1)
        mask = pad(read[row], (0, 0, 0, spare)).unflatten(1, (tiles, TILE_ROWS)).transpose(0, 1)
        listed = mask.any(dim=2)
        indices = listed.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        keys, values = (x[row : row + 1].expand(tiles, -1, -1, -1) for x in (k, v))
        attended, _ = sparse_decode_attention(
            tiled.contiguous(), keys, values, indices, listed.sum(dim=-1),
            block_size=block_size, kv_lengths=limits,
            row_mask=mask.gather(3, indices[:, :, None].expand(mask.shape)),
            bias=None if bias is None else bias[row : row + 1].expand(tiles, -1, -1),
        )  # fmt: skip
        out.append(attended.transpose(0, 1).reshape(heads, tiles * TILE_ROWS, dim)[:, :queries])
    return torch.stack(out)
