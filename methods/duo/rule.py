"""Tokens that DuoAttention reads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.head_roles import resolve_roles
from longdecode.methods.rule import Positions, Rule


class DuoRule(Rule):
    """Read everything in retrieval heads, sinks and the latest tokens (``budget`` in all) in streaming heads."""

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        count = params.retrieval_heads
        if count is None:
            count = config.num_layers * config.num_kv_heads // 2
        self.retrieves = resolve_roles(params.roles, count, params.roles_seed, config, layer0=False)

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return one list per KV head, by its role."""
        n = keys.shape[1]
        sinks = min(self.params.sink_tokens, self.budget // 4)
        ring = [p for p in range(n) if p < sinks or p >= n - (self.budget - sinks)]
        return [range(n) if retrieves else ring for retrieves in self.retrieves[layer]]


RULE = DuoRule
