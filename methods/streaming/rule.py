"""Tokens that StreamingLLM reads."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.methods.rule import Positions, Rule


class StreamingRule(Rule):
    """Read the first ``sinks`` tokens and the latest ``budget - sinks``, the current one among them."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return sinks and window, the same for every head."""
        if layer < self.params.dense_layers:
            return self.everything(keys)
        n, sinks = keys.shape[1], self.params.sinks
        oldest = n - (self.budget_at(n) - sinks)
        return [[p for p in range(n) if p < sinks or p >= oldest]] * self.config.num_kv_heads

    def turned_back(self, layer: int, kv_length: int) -> Tensor | None:
        """Return the number of dropped tokens for the sinks under ``positions: cache``."""
        if self.params.positions == "original":
            return None
        dropped = max(0, kv_length - self.budget)
        return torch.tensor([dropped if p < self.params.sinks else 0 for p in range(kv_length)], dtype=torch.float64)


RULE = StreamingRule
