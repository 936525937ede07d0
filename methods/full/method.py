"""Dense attention: every query reads every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError
from longdecode.engine.model_config import ModelConfig
from longdecode.methods.budgeted import build_params


@dataclass(frozen=True, slots=True)
class FullParams:
    """Dense attention has no knobs."""


class Full(AttentionMethod):
    """Dense attention on the static cache: the baseline that every other method is compared with."""

    name: ClassVar[str] = "full"
    Params: ClassVar[type] = FullParams

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> Full:
        """See ``AttentionMethod.from_budget``; a budget is refused, because it would not be honoured."""
        if budget_tokens is not None:
            raise ConfigError(f"full reads everything and takes no budget, got {budget_tokens} tokens")
        return cls(build_params(cls.name, cls.Params, overrides), config)

    def dense_layers(self) -> frozenset[int]:
        """All of them."""
        return frozenset(range(self.config.num_layers))


METHOD = Full
