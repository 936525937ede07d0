"""Pages that selection reuse reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.page_rule import PageRule
from longdecode.methods.rule import Positions, tokens_of


class SelectionReuseRule(PageRule):
    """Read the pages of the last choice, and every page begun since.

    Each layer chooses as Quest in its first step and ``interval`` steps after a choice.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.chosen: dict[int, list[list[int]]] = {}
        self.made: dict[int, int] = {}
        """By layer, the length at the step that chose."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of the last choice and of the pages behind it."""
        if layer < self.params.dense_layers:
            return self.everything(keys)
        n, size = keys.shape[1], self.params.page_size
        if layer not in self.made or n - self.made[layer] >= self.params.interval:
            self.chosen[layer], self.made[layer] = self.top_pages(queries, keys), n
        since = -(-self.made[layer] // size)
        return [tokens_of([*pages, *range(since, -(-n // size))], size, n) for pages in self.chosen[layer]]


RULE = SelectionReuseRule
