"""Pages that the union reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.page_rule import PageRule
from longdecode.methods.rule import Positions, tokens_of


class PageUnionRule(PageRule):
    """Read Quest's pages of the current step and of the ``window - 1`` steps before it, each page once."""

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.history: dict[int, list[list[list[int]]]] = {}
        """By layer and step, the pages of each KV head."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of all pages chosen within the window."""
        if layer < self.params.dense_layers:
            return self.everything(keys)
        steps = self.history.setdefault(layer, [])
        steps.append(self.top_pages(queries, keys))
        latest = steps[-self.params.window :]
        unions = [sorted(set().union(*(step[head] for step in latest))) for head in range(self.config.num_kv_heads)]
        return [tokens_of(pages, self.params.page_size, keys.shape[1]) for pages in unions]


RULE = PageUnionRule
