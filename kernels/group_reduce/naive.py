"""Group reduction in plain torch."""

from __future__ import annotations

from torch import Tensor

GROUP_REDUCTIONS = ("max", "sum", "mean")


def group_reduce(scores: Tensor, num_kv_heads: int, how: str) -> Tensor:
    """Reduce the scores of the query heads that share a KV head.

    Args:
        scores: ``[B, Hq, N]``.
        num_kv_heads: ``Hkv``, a divisor of ``Hq``.
        how: ``max``, ``sum`` or ``mean``.

    Returns:
        ``[B, Hkv, N]`` in the scores' dtype.

    Raises:
        ValueError: ``how`` is none of the three, or ``Hq`` is no multiple of ``Hkv``.
    """
    if how not in GROUP_REDUCTIONS:
        raise ValueError(f"group reduction {how!r} is none of {', '.join(GROUP_REDUCTIONS)}")
    batch, heads, size = scores.shape
    if heads % num_kv_heads:
        raise ValueError(f"{heads} query heads cannot share {num_kv_heads} KV heads evenly")
    grouped = scores.view(batch, num_kv_heads, heads // num_kv_heads, size)
    if how == "max":
        return grouped.amax(dim=2)
    return grouped.sum(dim=2) if how == "sum" else grouped.mean(dim=2)
