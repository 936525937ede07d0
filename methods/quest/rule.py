"""Pages that Quest reads."""

from __future__ import annotations

from torch import Tensor

from longdecode.methods.page_rule import PageRule
from longdecode.methods.rule import Positions, best, tokens_of


class QuestRule(PageRule):
    """Read the pages with the largest upper bound of ``q . k``, from the channel-wise extremes of their keys.

    ``kernel``: one list per KV head, the current page always in it. ``accuracy_script``: one list per query head, the
    current page competes.
    """

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of the chosen pages; everything in the first layers."""
        if self.params.variant == "kernel" or layer < self.params.dense_layers:
            return super().reads(layer, queries, keys)
        n, size = keys.shape[1], self.params.page_size
        count = self.budget_at(n) // size
        bounds = [self.page_scores(head, queries, keys) for head in range(self.config.num_heads)]
        return [tokens_of(best(scores, count), size, n) for scores in bounds]


RULE = QuestRule
