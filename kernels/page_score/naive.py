"""Page scores in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, before, fold_group, group_reduce
from longdecode.kernels.page_minmax import PageBounds


def page_score(
    q: Tensor, bounds: PageBounds, pages: Tensor, *, group: str | None = None, k_scale: Tensor | None = None
) -> Tensor:
    """Upper bound of ``q . k`` over the keys of each page: ``score_j = sum_i max(q_i m_{j,i}, q_i M_{j,i})``.

    The maximum takes ``M`` where ``q_i >= 0`` and ``m`` where not, so it is two matrix products:
    ``max(q, 0) M^T + min(q, 0) m^T``. Moves ``2 * B * Hkv * P * D`` elements.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype; sums run in float32 (float64 for float64), unscaled.
        bounds: minimum and maximum, ``[B, Hkv, P, D]``.
        pages: ``[B]`` int64, pages in use in each row; the others score minus infinity, whatever they hold.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head; ``None`` keeps one score per query head.
        k_scale: ``[B, Hkv, D]``, above zero, where bounds are codes of e4m3: a number is its code times this.

    Returns:
        ``[B, Hq, P]``, or ``[B, Hkv, P]`` under a group reduction, in float32 (float64 for float64).

    Raises:
        ValueError: the group reduction is unknown or the heads do not divide.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), algorithm 1; no source fixes the reduction over a GQA group.
    """
    dtype, kv_heads = accumulator(q.dtype), bounds.minimum.shape[1]
    grouped = fold_group(q, kv_heads).to(dtype)
    grouped = grouped if k_scale is None else grouped * k_scale[:, :, None]
    scores = grouped.clamp(min=0) @ bounds.maximum.to(dtype).transpose(-1, -2)
    scores += grouped.clamp(max=0) @ bounds.minimum.to(dtype).transpose(-1, -2)
    scores = scores.view(q.shape[0], q.shape[1], -1)
    if group is not None:
        scores = group_reduce(scores, kv_heads, group)
    return torch.where(before(pages, scores.shape[-1])[:, None], scores, float("-inf"))
