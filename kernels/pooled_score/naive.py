"""Scores of pooled keys in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.group_reduce import group_reduce
from longdecode.kernels.layout import accumulator, before, fold_group


def pooled_score(q: Tensor, pooled: Tensor, blocks: Tensor, *, group: str | None = None) -> Tensor:
    """Products of one query row with one key per block, ``score_{h,j} = q_h . p_j``, unscaled.

    With the mean of a block's keys as ``p_j`` this is the mean of its logits. Moves ``sum(blocks) * Hkv * D`` elements.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype; sums run in float32 (float64 for float64).
        pooled: ``[B, Hkv, P, D]``, one key a block.
        blocks: ``[B]`` integers, blocks in use in each row; the others score minus infinity, whatever they hold.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head; ``None`` keeps one score per query head.

    Returns:
        ``[B, Hq, P]``, or ``[B, Hkv, P]`` under a group reduction, in float32 (float64 for float64).

    Raises:
        ValueError: the group reduction is unknown or the heads do not divide.

    Source: Sun et al. 2024, ShadowKV (arXiv 2410.21465): chunks are chosen by their mean keys.
    """
    dtype, kv_heads = accumulator(q.dtype), pooled.shape[1]
    scores = fold_group(q, kv_heads).to(dtype) @ pooled.to(dtype).transpose(-1, -2)
    scores = scores.view(q.shape[0], q.shape[1], -1)
    if group is not None:
        scores = group_reduce(scores, kv_heads, group)
    return torch.where(before(blocks, scores.shape[-1])[:, None], scores, float("-inf"))
