"""Lossless speculative decoding with any attention method of the registry as the drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from longdecode.engine.attention import Draft, Traffic
from longdecode.engine.errors import ConfigError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver
from longdecode.methods.budgeted import BudgetedMethod, build_params
from longdecode.methods.registry import get_method


@dataclass(frozen=True, slots=True)
class SpeculateParams:
    """Knobs of speculative decoding; ``drafter_params`` are the drafter's own, checked as the drafter checks them."""

    drafter: str = "streaming"
    draft_tokens: Annotated[int, Field(ge=1, le=64)] = 4
    drafter_params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        build_params(self.drafter, get_method(self.drafter).Params, self.drafter_params)


class Speculate(BudgetedMethod):
    """A sparse method drafts ``draft_tokens`` tokens with ``budget`` tokens per KV head, dense attention verifies them.

    The output is that of dense attention, token for token; the drafter sets the speed alone. A step reads the context
    once for all its tokens, and the budget once for each draft.

    Source: Chen et al. 2024, MagicDec (arXiv 2408.11049); Leviathan et al. 2023 (arXiv 2211.17192); deviations in
    card.yaml.
    """

    name: ClassVar[str] = "speculate"
    Params: ClassVar[type] = SpeculateParams
    params: SpeculateParams

    def __init__(self, params: SpeculateParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        drafter = get_method(params.drafter).from_budget(budget_tokens, config, **params.drafter_params)
        if drafter.draft is not None:
            raise ConfigError(f"speculate: drafter = {params.drafter!r} drafts itself; an attention method is needed")
        self._draft = Draft(drafter, params.draft_tokens)

    @property
    def draft(self) -> Draft:
        """Return the drafter and how many tokens it drafts."""
        return self._draft

    def dense_heads(self) -> tuple[frozenset[int], ...]:
        """Return all heads: what verifies reads everything."""
        return (frozenset(range(self.config.num_kv_heads)),) * self.config.num_layers

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return the drafter's observers."""
        return self.draft.method.observers()

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the bytes of a step that keeps one token, the most that a token can cost."""
        one = self.draft.method.traffic(context_tokens, bytes_per_element)
        drafts, whole = self.draft.tokens, super().traffic(context_tokens, bytes_per_element)
        return Traffic(whole.kv_bytes + drafts * one.kv_bytes, drafts * one.metadata_bytes, at_most=True)


METHOD = Speculate
