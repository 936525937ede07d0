"""Tokens that OmniKV reads."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.rule import Positions, Rule, best_beside_window


class OmniKVRule(Rule):
    """Choose in filter layers, which read everything; read the last choice after the layers that wait behind them."""

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        layers = config.num_layers
        self.filters = [round(layers / 16), round(layers / 4), round(layers * 9 / 16)]
        if params.filter_layers is not None:
            self.filters = [place(text, layers) for text in params.filter_layers.split(",")]
        self.chosen: list[Positions] = []

    def source(self, layer: int) -> int | None:
        """Return the filter layer whose choice a layer reads, ``None`` for a layer that reads everything."""
        before = [at for at in self.filters if at + self.params.wait_layers < layer]
        waiting = [at for at in self.filters if at <= layer <= at + self.params.wait_layers]
        return max(before) if before and not waiting else None

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return everything, or what the nearest filter layer before chose."""
        if layer in self.filters:
            self.chosen = self.choose(queries, keys)
        return self.everything(keys) if self.source(layer) is None else self.chosen

    def choose(self, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens with the largest score of any query head, or of any in the group of each KV head."""
        p, kv_heads = self.params, self.config.num_kv_heads
        rows = [self.logits(head, queries, keys) for head in range(self.config.num_heads)]
        if p.score == "probability":
            powers = [[math.exp(logit) for logit in row] for row in rows]
            rows = [[power / sum(row) for power in row] for row in powers]
        shared = p.selection == "shared"
        heads = [range(len(rows)) if shared else self.group(head) for head in range(kv_heads)]
        scores = [[max(column) for column in zip(*(rows[head] for head in own), strict=True)] for own in heads]
        return [best_beside_window(row, self.budget, p.sink_tokens, p.recent_tokens, current=True) for row in scores]

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of every key in each filter layer behind which a layer reads its choice."""
        choosing = {self.source(layer) for layer in range(self.config.num_layers)} - {None}
        return len(choosing) * kv_length * self.config.num_kv_heads * self.config.head_dim * bytes_per_element


def place(text: str, layers: int) -> int:
    """Return a layer that is named by its number, or as a share of the depth."""
    part, slash, whole = text.partition("/")
    return round(layers * int(part) / int(whole)) if slash else int(text)


RULE = OmniKVRule
