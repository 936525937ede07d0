"""DuoAttention: retrieval heads keep and read everything, streaming heads only sinks and the latest tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from longdecode.engine.attention import Traffic
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.duo.split_cache import SplitCache
from longdecode.methods.head_roles import resolve_roles


@dataclass(frozen=True, slots=True)
class DuoParams:
    """Knobs of DuoAttention; ``retrieval_heads`` left out is half of all KV heads."""

    roles: str = "spread"
    retrieval_heads: Annotated[int, Field(ge=0)] | None = None
    roles_seed: int = 0
    sink_tokens: Annotated[int, Field(ge=0)] = 64


class Duo(BudgetedMethod):
    """Roles per layer and KV head; a streaming head's cache holds ``budget`` tokens: sinks, then a ring of the latest.

    The sinks are ``sink_tokens``, or a quarter of the budget where that is less, so that small budgets are spent on the
    latest tokens. A GQA group shares its KV head's role. No layer is dense by rule.

    Source: Xiao et al. 2024, DuoAttention (arXiv 2410.10819), sections 2.2 and 2.3, and its released code; deviations
    in card.yaml.
    """

    name: ClassVar[str] = "duo"
    Params: ClassVar[type] = DuoParams
    params: DuoParams
    used_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {"roles_seed": {"roles": "random"}}

    def __init__(self, params: DuoParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        count = params.retrieval_heads
        if count is None:
            count = config.num_layers * config.num_kv_heads // 2
        self.roles = resolve_roles(params.roles, count, params.roles_seed, config, layer0=False)
        self.sinks = min(params.sink_tokens, budget_tokens // 4)

    def dense_heads(self) -> tuple[frozenset[int], ...]:
        """The retrieval heads."""
        return tuple(frozenset(head for head, role in enumerate(row) if role) for row in self.roles)

    def dense_layers(self) -> frozenset[int]:
        """Layers whose heads all retrieve."""
        return frozenset(layer for layer, row in enumerate(self.roles) if all(row))

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """The context in retrieval heads, the ring in streaming heads; there is nothing to choose."""
        heads = self.config.num_layers * self.config.num_kv_heads
        whole = sum(map(sum, self.roles))
        tokens = whole * context_tokens + (heads - whole) * min(context_tokens, self.budget_tokens)
        return Traffic(tokens * self.token_bytes(bytes_per_element) // self.config.num_kv_heads)

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return whole rows for the retrieval heads and rings for the others; rows that fit a ring stay dense."""
        if shape.capacity <= self.budget_tokens:
            return None
        return SplitCache(shape, self.roles, self.budget_tokens, self.sinks)


METHOD = Duo
