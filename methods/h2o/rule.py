"""Tokens that H2O keeps."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.rule import EvictingRule, Positions, best


class H2ORule(EvictingRule):
    """Keep the latest tokens, and of the others those that received the most attention so far.

    The score of a token is the sum of its attention weights over all queries since the start of the prompt and over
    the query heads of the group; one set per KV head. ``recent_share`` of the budget is for the latest tokens, the
    current one among them. Room for the next token is made after each step, so that no step reads over the budget.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.scores: dict[tuple[int, int], list[float]] = {}

    def keep_prompt(self, layer: int, weights: Tensor) -> list[Positions]:
        """Start the sums with all queries of the prompt."""
        heads = range(self.config.num_kv_heads)
        for head in heads:
            self.scores[layer, head] = weights[list(self.group(head))].sum(dim=(0, 1)).tolist()
        return [self.cut(layer, head, range(weights.shape[1])) for head in heads]

    def keep(self, layer: int, stored: list[Positions], weights: Tensor) -> list[Positions]:
        """Add the step's weights to the sums."""
        for head in range(self.config.num_kv_heads):
            seen = weights[list(self.group(head))].sum(dim=0).tolist()
            before = [*self.scores[layer, head], 0.0]
            self.scores[layer, head] = [old + new for old, new in zip(before, seen, strict=True)]
        return [self.cut(layer, head, tokens) for head, tokens in enumerate(stored)]

    def cut(self, layer: int, head: int, stored: Positions) -> list[int]:
        """Return the latest tokens, one place left free for the next one, and the heaviest of the others."""
        seen = len(self.scores[layer, head])
        budget = self.budget_at(seen + 1)
        if len(stored) < budget:
            return list(stored)
        recent = min(budget - 1, max(1, int(self.params.recent_share * budget)))
        latest = [p for p in stored if p > seen - max(2, recent)]
        others = [p for p in stored if p not in latest]
        return [*best(self.scores[layer, head], budget - 1 - len(latest), others), *latest]


RULE = H2ORule
