"""Deterministic top-k selection in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import before


def topk_select(scores: Tensor, k: int, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the ``k`` largest valid scores of each list, ascending; of equal scores the lower index wins.

    Select what exceeds the ``k``-th largest value, then the first of those equal to it until ``k`` are taken. The
    result depends on nothing but the list itself: not on the batch around it, nor on the order a sort leaves ties in.
    Moves about six passes of the scores.

    Args:
        scores: ``[B, H, N]``, any float dtype, no NaN among the valid ones.
        k: how many to take, at least 1; ``K = min(k, N)`` is the width of the result.
        valid: ``[B]`` int64, the leading entries that count, or a bool mask that broadcasts to ``[B, H, N]``.

    Returns:
        ``indices`` ``[B, H, K]`` int64 and ``counts`` ``[B, H]`` int64, how many leading entries are valid; the entries
        after them are 0.

    Raises:
        ValueError: ``k`` is below 1.
    """
    if k < 1:
        raise ValueError(f"k = {k}; at least 1 is needed")
    batch, heads, size = scores.shape
    width = min(k, size)
    mask = valid if valid.dtype == torch.bool else before(valid, size)[:, None]
    ranked = torch.where(mask, scores, float("-inf"))
    kth = ranked.topk(width, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    above = ranked > kth
    tied = (ranked == kth) & mask
    spare = width - above.sum(dim=-1, keepdim=True, dtype=torch.int32)
    chosen = above | (tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= spare))

    order = chosen.cumsum(dim=-1, dtype=torch.int32)
    counts = order[..., -1].to(torch.int64)
    # Unchosen entries all land in one spare column, which is dropped.
    column = torch.where(chosen, order - 1, width).to(torch.int64)
    indices = torch.zeros(batch, heads, width + 1, dtype=torch.int64, device=scores.device)
    indices.scatter_(2, column, torch.arange(size, device=scores.device).expand(batch, heads, size))
    return indices[..., :width].contiguous(), counts
