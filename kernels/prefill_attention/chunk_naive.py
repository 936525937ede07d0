"""Attention of a chunk that starts at another position in each row: the reference, in plain torch with a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, fold_group


def chunk_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Causal softmax attention of the chunk at positions ``starts[b] .. starts[b] + T`` of each row.

    ``out_t = sum_{i <= starts[b] + t} softmax(q_t k_i / sqrt(D)) v_i``. Slots past a query's own never matter,
    whatever they hold. Moves ``2 * Hkv * D * S`` elements of cache a row and, here, ``B * Hq * T * S`` scores.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``, the chunk's own keys stored in it.
        v: ``[B, Hkv, S, D]``.
        starts: ``[B]`` int64, slot and position of each row's first query, at most ``S - T``.

    Returns:
        ``[B, Hq, T, D]`` in ``q``'s dtype.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1, with a causal mask.
    """
    rows, size, kv_heads = q.shape[2], k.shape[2], k.shape[1]
    dtype = accumulator(q.dtype)
    folded = fold_group(q, kv_heads).to(dtype) * q.shape[-1] ** -0.5
    ends = starts[:, None] + torch.arange(rows, device=q.device)
    seen = torch.arange(size, device=q.device) <= ends[..., None]
    mask = seen.repeat(1, folded.shape[2] // rows, 1)[:, None]
    scores = torch.where(mask, folded @ k.to(dtype).transpose(-1, -2), float("-inf"))
    # No probability of zero may meet a value that was never written.
    values = torch.where(seen[:, -1, :, None][:, None], v.to(dtype), 0.0)
    return (scores.softmax(dim=-1) @ values).to(q.dtype).reshape(q.shape)
