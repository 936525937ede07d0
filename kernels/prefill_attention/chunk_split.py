"""Attention of a chunk at ragged starts in two parts: what lies before it (decode attention) and the chunk itself."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.layout import accumulator, fold_group
from longdecode.kernels.merge_attention import merge_attention


def chunk_attention_split(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Causal attention of a chunk as in ``chunk_naive.chunk_attention``, without a mask over the cache.

    Every query of a row sees all that lies before the chunk, so that part is decode attention of ``T`` query rows over
    ``starts[b]`` keys; only the chunk's own ``T`` keys are causal. The two are joined by their log-sum-exps. Fixed
    shapes and no look at a value: a CUDA graph can capture it. Moves ``2 * Hkv * D * (starts[b] + T)`` elements of
    cache a row, once per 128 rows of queries (group times ``T``), and ``B * Hq * T * T`` scores.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype.
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``, the chunk's own keys stored in it.
        v: ``[B, Hkv, S, D]``.
        starts: ``[B]`` int64, slot and position of each row's first query, at most ``S - T``.

    Returns:
        ``[B, Hq, T, D]`` in ``q``'s dtype.

    Source: Dao 2023, FlashAttention-2 (arXiv 2307.08691), section 3.1.1: rescaling of partial outputs.
    """
    rows, kv_heads, dtype = q.shape[2], k.shape[1], accumulator(q.dtype)
    before = decode_attention(q, k, v, starts)
    steps = torch.arange(rows, device=q.device)
    at = (starts[:, None] + steps)[:, None, :, None].expand(-1, kv_heads, -1, q.shape[3])
    own_k, own_v = (cache.gather(2, at).to(dtype) for cache in (k, v))
    folded = fold_group(q, kv_heads).to(dtype) * q.shape[-1] ** -0.5
    causal = (steps <= steps[:, None]).repeat(folded.shape[2] // rows, 1)
    scores = torch.where(causal, folded @ own_k.transpose(-1, -2), float("-inf"))
    out, lse = scores.softmax(dim=-1) @ own_v, scores.logsumexp(dim=-1)
    return merge_attention(*before, out.reshape(q.shape), lse.reshape(q.shape[:-1]))[0]
