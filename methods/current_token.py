"""Keeping the current token, or the block it falls in, whatever it scores."""

from __future__ import annotations

from torch import Tensor


def always_keep(scores: Tensor, entry: Tensor) -> Tensor:
    """Raise one entry of every list of a row to infinity, in place, so that any top-k takes it.

    Args:
        scores: ``[B, H, N]`` float.
        entry: ``[B]`` int64, the token or block number to keep; at most ``N - 1`` is taken.

    Returns:
        ``scores``.
    """
    index = entry.clamp(max=scores.shape[-1] - 1)[:, None, None].expand(-1, scores.shape[1], 1)
    return scores.scatter_(2, index, float("inf"))
