"""Build boolean masks over the cache: the tokens that the sparse branch of a student layer reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

Branch = Literal["inherited", "streaming"]
Inherit = Literal["chain", "previous_layer"]
Selection = Literal["causal", "code"]


@dataclass(frozen=True, slots=True)
class SparseBranch:
    """The branch behind a gate of 0.

    ``branch`` is ``inherited`` (LycheeDecode: the set a lower layer chose) or ``streaming`` (DuoAttention: sink and
    recent tokens). ``inherit`` says whose set: ``chain``, that of the nearest lower layer whose sampled gate of the
    same KV head is over 0.5, layer 0 at worst, as at inference; ``previous_layer``, that of the layer below whatever
    its gates are, as the released training code has it. A set has ``ratio`` of all tokens, ``sink`` first and
    ``recent`` last ones among them. ``selection`` is ``causal`` (a KV group's mean query chooses among what it sees,
    and each query has its own recent window) or ``code`` (every query head chooses for itself, before the causal
    mask, with the last tokens of the whole sequence as its window).
    """

    branch: Branch = "inherited"
    inherit: Inherit = "chain"
    selection: Selection = "causal"
    ratio: float = 0.3
    sink: int = 128
    recent: int = 256

    def size(self, total_tokens: int) -> int:
        """Tokens of a set over ``total_tokens``, sink and recent included."""
        return min(total_tokens, max(self.sink + self.recent, int(self.ratio * total_tokens)))


@lru_cache(maxsize=1)
def causal_mask(start: int, tokens: int, device: torch.device) -> Tensor:
    """Return which of ``start + tokens`` positions each of the last ``tokens`` may attend to, ``[T, S]``."""
    positions = torch.arange(start + tokens, device=device)
    return positions <= positions[start:, None]


@lru_cache(maxsize=1)
def streaming_mask(start: int, tokens: int, branch: SparseBranch, device: torch.device) -> Tensor:
    """The first ``sink`` positions and each query's last ``recent``, its own included, ``[T, S]``."""
    positions = torch.arange(start + tokens, device=device)
    queries = positions[start:, None]
    kept = (positions < branch.sink) | (positions > queries - branch.recent)
    return kept & (positions <= queries)


@torch.no_grad()
def chosen_sets(scores: Tensor, branch: SparseBranch, causal: Tensor) -> Tensor:
    """The top tokens of each query.

    Args:
        scores: ``[B, Hkv, G, T, S]``, not masked; ``G`` is 1 for a group's mean query, else one a query head.
        causal: ``[T, S]``, from ``causal_mask``.

    Returns:
        bool of the scores' shape. Where a query sees fewer tokens than a set has, it is given all that it sees.

    Source: LycheeDecode (arXiv 2602.04541) for the rule; its released training code for ``code``.
    """
    tokens, total = causal.shape
    scores = scores.float()
    if branch.selection == "code":
        positions = torch.arange(total, device=scores.device)
        scores = scores.masked_fill((positions < branch.sink) | (positions >= total - branch.recent), torch.inf)
    else:
        window = streaming_mask(total - tokens, tokens, branch, scores.device)
        scores = scores.masked_fill(window, torch.inf).masked_fill(~causal, -torch.inf)
    best = scores.topk(branch.size(total), dim=-1, sorted=False).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & causal
