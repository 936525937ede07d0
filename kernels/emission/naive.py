"""Recording of chosen tokens in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Progress:
    """State of each sequence's continuation.

    Args:
        chosen: ``[B, N + 1]`` int64, the continuations; the last column is spare.
        counts: ``[B]`` int64, tokens of each.
        steps: ``[B]`` int64, steps in which a row was active.
        newest: ``[B]`` int64, each row's newest token.
        active: ``[B]`` bool, rows that go on.
        totals: ``[B]`` int64, tokens at which a row is done.
        forced_counts: ``[B]`` int64, leading tokens that do not stop a row.
        stops: ``[B, M]`` int64, tokens that stop a row; ``None`` where nothing does.
    """

    chosen: Tensor
    counts: Tensor
    steps: Tensor
    newest: Tensor
    active: Tensor
    totals: Tensor
    forced_counts: Tensor
    stops: Tensor | None


def record_tokens(progress: Progress, tokens: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Append the first ``counts`` chosen tokens of each active row, up to a stop token or the row's total.

    Args:
        progress: changed in place.
        tokens: ``[B, T]`` int64.
        counts: ``[B]`` int64; all ``T`` where left out.

    Returns:
        Tokens recorded, ``[B]`` int64, and which they are, ``[B, T]`` bool.
    """
    place = torch.arange(tokens.shape[1], device=tokens.device)
    index = progress.counts[:, None] + place
    taken = progress.active[:, None] & (index < progress.totals[:, None])
    if counts is not None:
        taken = taken & (place < counts[:, None])
    ends = torch.zeros_like(taken)
    if progress.stops is not None:
        ends = (tokens[..., None] == progress.stops[:, None]).any(dim=-1) & (index >= progress.forced_counts[:, None])
        taken = taken & (ends.cumsum(dim=1) - ends.long() == 0)
    progress.chosen.scatter_(1, torch.where(taken, index, progress.chosen.shape[1] - 1), tokens)
    recorded = taken.sum(dim=1)
    last = tokens.gather(1, (recorded - 1).clamp(min=0)[:, None])[:, 0]
    progress.newest.copy_(torch.where(recorded > 0, last, progress.newest))
    progress.steps.add_(progress.active)
    progress.counts.add_(recorded)
    done = (progress.counts >= progress.totals) | (ends & taken).any(dim=1)
    progress.active.logical_and_(~done)
    return recorded, taken
