"""Tokens that TOVA keeps."""

from __future__ import annotations

from torch import Tensor

from longdecode.methods.rule import EvictingRule, Positions, best, mean_of


class TovaRule(EvictingRule):
    """Keep the tokens with the largest attention weight from the latest query, the mean over all query heads.

    One set per layer, shared by all KV heads. The current token is always kept. Room for the next token is made after
    each step, so that no step reads over the budget.
    """

    def keep_prompt(self, layer: int, weights: Tensor) -> list[Positions]:
        """Cut by the last query of the prompt."""
        return self.cut(range(weights.shape[1]), weights[:, -1])

    def keep(self, layer: int, stored: list[Positions], weights: Tensor) -> list[Positions]:
        """Cut by the step's query."""
        return self.cut(stored[0], weights)

    def cut(self, stored: Positions, weights: Tensor) -> list[Positions]:
        """Return the current token and the best of the others, one place left free for the next one."""
        *others, current = stored
        budget = self.budget_at(weights.shape[1] + 1)
        kept = [*best(mean_of(weights.tolist()), budget - 2, others), current]
        return [list(stored) if len(stored) < budget else kept] * self.config.num_kv_heads


RULE = TovaRule
