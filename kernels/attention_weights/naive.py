"""Attention weights summed over a block of rows, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, block_visible, fold_group, group_reduce


def attention_weights(
    q: Tensor,
    k: Tensor,
    kv_lengths: Tensor,
    *,
    group: str,
    mask: Tensor | None = None,
    scale: float | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Return the probability that each stored slot got, summed over the rows of a block and reduced over the group.

    ``w_i = reduce_g sum_t exp(scale * q_gt k_i - lse_gt)``. Row ``t`` reads all slots before the block, and of it
    what the mask allows, as in ``decode_attention``. Moves ``sum(kv_lengths) * D`` elements of cache
    for each KV head once for up to 64 rows, twice without ``lse``.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        kv_lengths: ``[B]`` or ``[B, Hkv]`` int64, tokens stored, the block included; slots past them weigh 0.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head.
        mask: ``[T, T]`` bool; causal when left out.
        scale: factor on the scores, above 0; ``D ** -0.5`` when left out.
        lse: ``[B, Hq, T]``, as ``decode_attention`` returned it for the same rows; computed when left out.

    Returns:
        ``[B, Hkv, S]`` in float32 (float64 for float64).

    Raises:
        ValueError: the group reduction is unknown, the heads do not divide, or a shape does not fit.

    Source: Zhang et al. 2023, H2O (arXiv 2306.14048), section 4; Li et al. 2024, SnapKV (arXiv 2404.14469), section 4.
    """
    (batch, heads, queries, dim), kv_heads, size = q.shape, k.shape[1], k.shape[2]
    scale = dim**-0.5 if scale is None else scale
    grouped = fold_group(q, kv_heads).to(accumulator(q.dtype)) * scale
    visible = block_visible(kv_lengths, size, queries, mask)[:, :, None]
    scores = (grouped @ k.to(grouped.dtype).transpose(-1, -2)).unflatten(2, (-1, queries))
    scores = torch.where(visible, scores, float("-inf"))
    total = scores.logsumexp(dim=-1) if lse is None else lse.to(scores.dtype).view(scores.shape[:-1])
    weights = torch.exp(scores - torch.where(total == float("-inf"), 0.0, total)[..., None])
    return group_reduce(weights.sum(dim=3).view(batch, heads, size), kv_heads, group)
