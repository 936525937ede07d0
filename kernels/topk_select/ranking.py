"""Choice of entries by rules that sort whole lists, in plain torch: entries kept always, then the best or likeliest."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import before


def rank(scores: Tensor, valid: Tensor, first: Tensor, last: Tensor, width: int) -> Tensor:
    """The ``width`` leading places of each list: entries kept always, then the others by falling score.

    Args:
        scores: ``[B, R, P]``; entries at or past ``valid`` may hold anything.
        valid: ``[B]`` int64.
        first: ``[B]`` int64, leading entries kept always.
        last: ``[B]`` int64, trailing ones.
        width: places wanted, at most ``P``.

    Returns:
        ``[B, R, width]`` int64; of equal scores the lower place comes first.
    """
    place = torch.arange(scores.shape[-1], device=scores.device)
    kept = (place < first[:, None]) | (place >= (valid - last)[:, None])
    ranked = torch.where(kept[:, None], float("inf"), scores)
    ranked = torch.where(before(valid, scores.shape[-1])[:, None], ranked, float("-inf"))
    return ranked.sort(dim=-1, descending=True, stable=True).indices[..., :width]


def by_probability(
    scores: Tensor, valid: Tensor, first: int, last: int, cap: int, *, top_p: float | None, threshold: float
) -> tuple[Tensor, Tensor]:
    """Entries kept always, then the likeliest: until all hold ``top_p`` of the mass, or those above ``threshold``.

    The probabilities are the softmax of the scores over a row's entries. An entry is taken while those before it, the
    kept ones included, hold no more than ``top_p``; one is always taken, and no more than ``cap``. A row of ``cap``
    entries or fewer is taken whole.

    Args:
        scores: ``[B, R, P]`` logits in natural units; entries at or past ``valid`` may hold anything.
        valid: ``[B]`` int64, 1 or more.
        first: leading entries kept always.
        last: trailing ones.
        cap: the longest list, ``first + last`` or more.
        top_p: the mass; ``None`` for the threshold rule.
        threshold: the probability to exceed, where ``top_p`` is ``None``.

    Returns:
        Places ``[B, R, cap]``, kept ones first, then by falling score (fewer where ``P`` is less), and counts
        ``[B, R]``, int64.
    """
    used = before(valid, scores.shape[-1])
    place = torch.arange(scores.shape[-1], device=scores.device)
    kept = ((place < first) | (place >= (valid - last)[:, None])) & used
    likely = torch.where(used[:, None], scores, float("-inf")).softmax(dim=-1)
    # Above every probability. Among equal ones, some of them zero, a stable sort leaves valid places before the others.
    ranked, places = torch.where(kept[:, None], 2.0, likely).sort(dim=-1, descending=True, stable=True)
    ordered = likely.gather(-1, places)
    passes = ordered > threshold if top_p is None else (ordered.cumsum(dim=-1) - ordered <= top_p) & (ordered > 0)
    counts = (passes | (ranked > 1)).sum(dim=-1).clamp(min=1, max=cap)
    whole = valid[:, None]
    return places[..., :cap], torch.where(whole <= cap, whole, counts)
