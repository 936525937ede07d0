"""Measures of traces: overlap of selections, effective budget, distance from Full's states, loss along the text."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.evals.retrospection.trace import PageChoices, Trace

BUCKETS = 8
"""Parts of a continuation over which a loss is averaged."""


def overlap(choices: PageChoices, lag: int) -> tuple[Tensor, Tensor]:
    """Return how much of what a step loads the step ``lag`` before had chosen, and had next in rank, ``[B]`` float64.

    Of the pages that existed at the earlier step; the mean over steps, sparse layers and KV heads.

    Source: RetroAttention (arXiv 2508.09001), figure 2b; the restriction to pages that existed is this project's.
    """
    loaded = choices.top[lag:] & _in_use(choices)[:-lag]
    total = loaded.sum(dim=-1).double().clamp(min=1)
    top, following = (
        ((loaded & earlier[:-lag]).sum(dim=-1).double() / total).mean(dim=(0, 1, 3))
        for earlier in (choices.top, choices.following)
    )
    return top, following


def effective_budget(choices: PageChoices, steps: int) -> Tensor:
    """Return ``E_n``, ``[B]`` float64: pages loaded in a step or the ``n`` after it, over those of the step.

    ``E_n = |S_t | S_{t+1} | ... | S_{t+n}| / |S_t|`` of the pages that a token at ``t`` may read; the mean over steps,
    sparse layers and KV heads.

    Source: RetroAttention (arXiv 2508.09001), figure 2c; the formula is inferred.
    """
    last = len(choices.top) - steps
    union = torch.zeros_like(choices.top[:last])
    for ahead in range(steps + 1):
        union |= choices.top[ahead : ahead + last]
    union &= _in_use(choices)[:last]
    own = choices.top[:last].sum(dim=-1).double()
    return (union.sum(dim=-1).double() / own).mean(dim=(0, 1, 3))


def distances(trace: Trace, full: Trace, window: int) -> dict[str, Tensor]:
    """Return how far a trace's states lie from Full's, ``[L, B]`` float64 by measure.

    ``<state>_error`` is the norm of the difference over the norm of Full's; ``<state>_cosine`` the mean cosine of the
    vectors of tokens and heads. States: ``key``, ``value``, ``output`` (a token's attention output in its own step) and
    ``output_final`` (as its window left it). The last ``window - 1`` tokens, not yet final, are left out of all four.
    """
    settled = trace.first.shape[0] - (window - 1)
    pairs = {
        "key": (trace.keys[..., :settled, :], full.keys[..., :settled, :]),
        "value": (trace.values[..., :settled, :], full.values[..., :settled, :]),
        "output": tuple(part[:settled].permute(1, 2, 0, 3)[:, :, None] for part in (trace.first, full.first)),
        "output_final": tuple(part[:settled].permute(1, 2, 0, 3)[:, :, None] for part in (trace.last, full.last)),
    }
    found = {}
    for name, (ours, theirs) in pairs.items():
        mine, want = ours.double(), theirs.double()
        difference = (mine - want).square().sum(dim=(2, 3, 4)).sqrt()
        found[f"{name}_error"] = difference / want.square().sum(dim=(2, 3, 4)).sqrt().clamp(min=1e-30)
        found[f"{name}_cosine"] = torch.cosine_similarity(mine, want, dim=-1).mean(dim=(2, 3))
    return found


def loss_gaps(trace: Trace, full: Trace) -> list[tuple[int, Tensor]]:
    """Return the loss over Full's by part of the continuation: its last step and ``[B]`` float64, in nats a token."""
    gap = (trace.losses - full.losses).double()
    parts = gap.tensor_split(min(BUCKETS, len(gap)))
    ends = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()
    return [(end, part.mean(dim=0)) for end, part in zip(ends, parts, strict=True)]


def _in_use(choices: PageChoices) -> Tensor:
    """Return the pages in use by step, ``[T, 1, B, 1, P]`` bool."""
    places = torch.arange(choices.top.shape[-1], device=choices.top.device)
    return (places < choices.used[..., None])[:, None, :, None]
