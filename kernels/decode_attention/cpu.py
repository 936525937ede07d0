"""Decode attention for CPUs: one product over the keys that all rows have, the rest row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, fold_group


def decode_attention_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: list[int],
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    kv_tokens_read: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention as in ``naive.decode_attention``, in few and large operations.

    The keys before the shortest end are read by one batched product, at the speed of memory; the longer ones' rest is
    added row by row, so that nothing past an end is touched. The log-sum-exp follows from the largest score and its
    probability: ``lse = max - log(p_max)``. Moves ``2 * sum(ends) * Hkv * D`` elements of cache.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        v: ``[B, Hkv, S, D]``.
        ends: tokens stored of each batch row, ``T`` or more.
        mask: ``[T, T]`` bool; causal when left out.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over KV heads, are added.

    Returns:
        ``out`` ``[B, Hq, T, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, T]`` in float32 (float64 for float64).
    """
    queries = q.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = accumulator(q.dtype)
    grouped = fold_group(q, k.shape[1]).to(dtype) * scale
    shared = min(ends)
    tails = [(row, end) for row, end in enumerate(ends) if end > shared]
    scores = grouped @ k[:, :, :shared].to(dtype).transpose(-1, -2)
    if tails:
        padding = grouped.new_full((*scores.shape[:-1], max(ends) - shared), float("-inf"))
        scores = torch.cat((scores, padding), dim=-1)
    for row, end in tails:
        scores[row, ..., shared:end] = grouped[row] @ k[row, :, shared:end].to(dtype).transpose(-1, -2)
    if queries > 1:
        steps = torch.arange(queries)
        hidden = (steps > steps[:, None] if mask is None else ~mask).repeat(grouped.shape[2] // queries, 1)
        for row, end in enumerate(ends):
            scores[row, ..., end - queries : end].masked_fill_(hidden, float("-inf"))
    probabilities = torch.softmax(scores, dim=-1)
    out = probabilities[..., :shared] @ v[:, :, :shared].to(dtype)
    for row, end in tails:
        out[row] += probabilities[row, ..., shared:end] @ v[row, :, shared:end].to(dtype)
    if kv_tokens_read is not None:
        kv_tokens_read += torch.tensor(ends) * k.shape[1]
    lse = scores.amax(dim=-1) - probabilities.amax(dim=-1).log()
    return out.to(q.dtype).reshape(q.shape), lse.reshape(q.shape[:-1])
