"""Tokens that TidalDecode reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.rule import Positions, Rule, best_beside_window


class TidalRule(Rule):
    """Choose by logit in layer 2 and in the re-selection layer, which read everything; read the choice in between."""

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        reselect = params.reselect_layer
        self.choosing = (2, max(4, round(config.num_layers * 13 / 32)) if reselect is None else reselect)
        self.chosen: list[Positions] = []

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return everything in layers 0 to 2 and the re-selection layer, the last choice in the others."""
        if layer in self.choosing:
            self.chosen = self.choose(queries, keys)
        return self.everything(keys) if layer <= 2 or layer in self.choosing else self.chosen

    def choose(self, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens with the largest logits, per KV head (the current token always) or per query head."""
        p = self.params
        if p.selection == "query_head":
            rows = [self.logits(head, queries, keys) for head in range(self.config.num_heads)]
        else:
            rows = [self.mean_logits(head, queries, keys) for head in range(self.config.num_kv_heads)]
        current = p.selection == "kv_head"
        return [best_beside_window(row, self.budget, p.sink_tokens, p.recent_tokens, current) for row in rows]

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of every key in the two layers that choose."""
        return 2 * kv_length * self.config.num_kv_heads * self.config.head_dim * bytes_per_element


RULE = TidalRule
