"""Decode attention in plain torch: the reference that faster versions are held to."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, before, fold_group


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    kv_tokens_read: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of every query row over the first ``lengths[b]`` keys of its batch row.

    ``p = softmax(scale * q k^T)``, ``out = p v``, ``lse = log sum exp(scale * q k^T)``. Slots at or past the length
    never matter, whatever they hold. Moves ``2 * sum(lengths) * Hkv * D`` elements of cache.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        v: ``[B, Hkv, S, D]``.
        lengths: ``[B]`` int64, at most ``S``; a row of length 0 gives zeros and an ``lse`` of minus infinity.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over KV heads, are added.

    Returns:
        ``out`` ``[B, Hq, T, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, T]`` in float32 (float64 for float64).

    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1; grouped heads, Ainslie et al. 2023 (arXiv 2305.13245).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    grouped = fold_group(q, k.shape[1]).to(accumulator(q.dtype)) * scale
    out, lse = _masked(grouped, k, v, lengths)
    if kv_tokens_read is not None:
        kv_tokens_read += lengths * k.shape[1]
    return out.to(q.dtype).reshape(q.shape), lse.reshape(q.shape[:-1])


def _masked(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Scaled rows ``[B, Hkv, R, D]`` over the whole capacity: fixed shapes and no host wait, as a CUDA graph needs."""
    visible = before(lengths, k.shape[2])[:, None]
    scores = q @ k.to(q.dtype).transpose(-1, -2)
    scores = torch.where(visible[:, :, None], scores, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    probabilities = torch.exp(scores - torch.where(lse == float("-inf"), 0.0, lse)[..., None])
    clean = torch.where(visible[..., None], v.to(q.dtype), 0.0)
    return probabilities @ clean, lse
