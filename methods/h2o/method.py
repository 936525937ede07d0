"""H2O: keep the latest tokens and those that have received the most attention so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver
from longdecode.methods.budgeted import Share
from longdecode.methods.evicting import EvictingMethod
from longdecode.methods.prefill_scores import AttentionReceived


@dataclass(frozen=True, slots=True)
class H2OParams:
    """Knobs of H2O."""

    recent_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    dense_layers: Annotated[int, Field(ge=0)] = 0
    share: Share = None


class H2O(EvictingMethod):
    """Per KV head ``budget`` tokens: a share of latest ones, the current among them, and the heavy hitters.

    A token's score is the attention probability it has received from all queries of the group, of the prompt and
    since. The token with the lowest score outside the latest ones makes room for the next; it never returns.

    Source: Zhang et al. 2023, H2O (arXiv 2306.14048), algorithm 1, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "h2o"
    Params: ClassVar[type] = H2OParams
    params: H2OParams
    eviction = "accumulate"

    def __init__(self, params: H2OParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        self.latest = min(budget_tokens - 1, max(1, int(params.recent_share * budget_tokens)))

    def latest_at(self, lengths: Tensor) -> int | Tensor:
        """Return the share of each row's budget that is for latest tokens."""
        if self.growth is None:
            return self.latest
        budgets = self.growth.of(lengths)
        return (budgets * self.params.recent_share).long().clamp(min=1).minimum(budgets - 1)

    @classmethod
    def minimum_budget(cls, params: H2OParams) -> tuple[int, str]:
        """Return the current token and one heavy hitter."""
        return 2, "the current token and one heavy hitter"

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return the observer of the attention that each key receives."""
        return (AttentionReceived(),)

    def prompt_scores(self, keys: Tensor, lengths: Tensor, observed: Mapping[str, Tensor]) -> Tensor:
        """Return what all queries of the prompt gave; nothing to places past it."""
        received = observed[AttentionReceived.key]
        return pad(received, (0, keys.shape[2] - received.shape[2]))


METHOD = H2O
