"""Tokens that DMA reads, and what it adds to their logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.block_rule import importances, newest_best
from longdecode.methods.rule import Positions, Rule


class DmaRule(Rule):
    """Read the current token and those of the largest importance in bfloat16; of equal ones the later."""

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.tokens = torch.zeros(0)
        self.sink = max(1, self.budget // 64) if params.forced else 0
        self.window = max(1, self.budget // 4) if params.forced else 1

    def bias(self, layer: int, values: Tensor) -> Tensor:
        """Return the importances."""
        self.tokens = importances(self.params.heads, self.config, layer, values)
        return self.tokens

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the forced tokens and the most important of the others."""
        n = keys.shape[1]
        forced = {p for p in range(n) if p < self.sink or p >= n - self.window}
        return [
            sorted(forced | newest_best(own.bfloat16().tolist(), self.budget - len(forced), forced))
            for own in self.tokens
        ]

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of one float32 a token, and of those read once more."""
        numbers = kv_length + min(kv_length, self.budget)
        return 4 * numbers * self.config.num_kv_heads * self.config.num_layers


RULE = DmaRule
