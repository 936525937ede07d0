"""Pages that selection reuse reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.page_rule import PageRule
from longdecode.methods.rule import Positions, tokens_of


class SelectionReuseRule(PageRule):
    """Read the pages of the last choice, and every page begun since.

    Each layer chooses as Quest in its first step and ``interval`` steps after a choice; under ``cosine`` also where the
    query of all heads together has a cosine under ``gate`` with that of the last choice.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.chosen: dict[int, list[list[int]]] = {}
        self.made: dict[int, tuple[int, Tensor]] = {}
        """By layer, the length and the query of the step that chose."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of the last choice and of the pages behind it."""
        if layer < self.params.dense_layers:
            return self.everything(keys)
        n, size = keys.shape[1], self.params.page_size
        if layer not in self.made or self.due(queries, n, *self.made[layer]):
            self.chosen[layer] = self.top_pages(queries, keys)
            self.made[layer] = (n, queries.flatten())
        since = -(-self.made[layer][0] // size)
        return [tokens_of([*pages, *range(since, -(-n // size))], size, n) for pages in self.chosen[layer]]

    def due(self, queries: Tensor, length: int, chosen_at: int, chosen_by: Tensor) -> bool:
        """Return true where a step chooses anew."""
        flat = queries.flatten()
        cosine = float(flat @ chosen_by / (flat.norm() * chosen_by.norm()))
        turned = self.params.policy == "cosine" and cosine < self.params.gate
        return length - chosen_at >= self.params.interval or turned


RULE = SelectionReuseRule
