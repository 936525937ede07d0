"""Token scores in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, before, fold_group, group_reduce, on_host


def token_logits(
    q: Tensor, k: Tensor, lengths: Tensor, *, scale: float | None = None, group: str | None = None
) -> Tensor:
    """Return attention logits of one query row, ``scale * q_h . k_i``; minus infinity at or past the length.

    What stands past the length never matters. Moves ``sum(lengths) * Hkv * D`` elements.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        lengths: ``[B]`` int64, at most ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head; ``None`` keeps one score per query head.

    Returns:
        ``[B, Hq, S]``, or ``[B, Hkv, S]`` under a group reduction, in float32 (float64 for float64).

    Raises:
        ValueError: the group reduction is unknown or the heads do not divide.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), the argument of equation 1's softmax.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    grouped = fold_group(q, k.shape[1]).to(accumulator(q.dtype)) * scale
    shape = (q.shape[0], q.shape[1], k.shape[2])
    if not on_host(q):
        scores = (grouped @ k.to(grouped.dtype).transpose(-1, -2)).view(shape)
        scores = torch.where(before(lengths, shape[-1])[:, None], scores, float("-inf"))
    else:
        scores = grouped.new_full((*grouped.shape[:-1], shape[-1]), float("-inf"))
        for row, length in enumerate(lengths.tolist()):
            scores[row, ..., :length] = grouped[row] @ k[row, :, :length].to(grouped.dtype).transpose(-1, -2)
        scores = scores.view(shape)
    return scores if group is None else group_reduce(scores, k.shape[1], group)


def token_probabilities(q: Tensor, k: Tensor, lengths: Tensor, *, scale: float | None = None) -> Tensor:
    """Return the softmax of ``token_logits`` over each row's tokens; zero at or past the length.

    Args:
        q: ``[B, Hq, 1, D]``.
        k: ``[B, Hkv, S, D]``.
        lengths: ``[B]`` int64, at least 1.
        scale: factor on the scores; ``D ** -0.5`` when left out.

    Returns:
        ``[B, Hq, S]`` in float32 (float64 for float64).

    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1.
    """
    return token_logits(q, k, lengths, scale=scale).softmax(dim=-1)
