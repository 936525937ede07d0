"""Decode attention in plain torch: the reference that faster versions are held to."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, block_visible, fold_group


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lengths: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    kv_tokens_read: Tensor | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention of a block of query rows over a ragged cache that already holds the block's keys.

    ``p = softmax(scale * q k^T)``, ``out = p v``, ``lse = log sum exp(scale * q k^T)``. The keys of the ``T`` rows lie
    in the slots ``kv_lengths - T .. kv_lengths - 1``. Row ``t`` reads all slots before them, and of them slot ``u``
    where ``mask[t, u]``. Slots at or past the length are never used, whatever they hold. Moves
    ``2 * sum(kv_lengths) * D`` elements of cache for each KV head, once for all rows.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        v: ``[B, Hkv, S, D]``.
        kv_lengths: ``[B]`` or ``[B, Hkv]`` int64, tokens stored, the block included, at most ``S``; a length of 0 gives
            zeros and an ``lse`` of minus infinity.
        mask: ``[T, T]`` bool with a true diagonal; ``None`` is causal, ``u <= t``.
        scale: factor on the scores, above 0; ``D ** -0.5`` when left out.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, once for all rows and summed over KV heads, are added.
        logits: ``[B, Hq, S]`` float32 (float64 for float64), which receives ``scale * q k^T`` of one row a head; what
            stands past a length may be anything.

    Returns:
        ``out`` ``[B, Hq, T, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, T]`` in float32 (float64 for float64).

    Raises:
        ValueError: ``Hq`` is not a multiple of ``Hkv``, the mask, ``kv_lengths`` or ``logits`` has another shape, or
            logits are asked for of a block.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1; grouped heads, Ainslie et al. 2023 (arXiv 2305.13245).
    """
    heads, size, queries = k.shape[1], k.shape[2], q.shape[2]
    check_logits(logits, q, size)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    grouped = fold_group(q, heads).to(accumulator(q.dtype)) * scale
    # Over the whole capacity: fixed shapes and no host wait, as a CUDA graph needs.
    visible = block_visible(kv_lengths, size, queries, mask)
    scores = (grouped @ k.to(grouped.dtype).transpose(-1, -2)).unflatten(2, (-1, queries))
    scores = torch.where(visible[:, :, None], scores, float("-inf"))
    if logits is not None:
        logits.copy_(scores.reshape(logits.shape))
    lse = torch.logsumexp(scores, dim=-1)
    probabilities = torch.exp(scores - torch.where(lse == float("-inf"), 0.0, lse)[..., None]).flatten(2, 3)
    clean = torch.where(visible.any(dim=2)[..., None], v.to(grouped.dtype), 0.0)
    if kv_tokens_read is not None:
        kv_tokens_read += kv_lengths * heads if kv_lengths.dim() == 1 else kv_lengths.sum(dim=1)
    return (probabilities @ clean).to(q.dtype).reshape(q.shape), lse.reshape(q.shape[:-1])


def check_logits(logits: Tensor | None, q: Tensor, size: int) -> None:
    """Refuse a buffer for logits that does not fit one row a head over ``size`` slots.

    Raises:
        ValueError: as said.
    """
    if logits is not None and (logits.shape != (*q.shape[:2], size) or q.shape[2] != 1 or not logits.is_contiguous()):
        raise ValueError(f"logits {tuple(logits.shape)} for queries {tuple(q.shape)} over {size} slots")
