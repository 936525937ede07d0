"""TOVA: drop the token that the current query attends to least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from longdecode.engine.prefill import PrefillObserver
from longdecode.kernels.attention_weights import attention_weights
from longdecode.methods.budgeted import Share
from longdecode.methods.evicting import EvictingMethod
from longdecode.methods.prefill_scores import LatestQueries

_LAST_QUERY = LatestQueries(1).key


@dataclass(frozen=True, slots=True)
class TOVAParams:
    """Knobs of TOVA."""

    dense_layers: Annotated[int, Field(ge=0)] = 0
    share: Share = None


class TOVA(EvictingMethod):
    """``budget`` tokens a layer, the same for all its heads; the least attended one makes room for the next.

    A token's score is the attention probability that the current query gives it, averaged over all query heads. The
    current token is protected, so that every token is read at least once more.

    Source: Oren et al. 2024, TOVA (arXiv 2401.06104), section 3.2, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "tova"
    Params: ClassVar[type] = TOVAParams
    params: TOVAParams
    latest = 1
    eviction = "latest"

    @classmethod
    def minimum_budget(cls, params: TOVAParams) -> tuple[int, str]:
        """Return the current token and one other."""
        return 2, "the current token and one other"

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return the observer of the prompt's last query."""
        return (LatestQueries(1),)

    def prompt_scores(self, keys: Tensor, lengths: Tensor, observed: Mapping[str, Tensor]) -> Tensor:
        """Return what the prompt's last query gives, the mean over all heads."""
        weights = attention_weights(observed[_LAST_QUERY], keys, lengths, group="mean")
        return weights.mean(dim=1, keepdim=True).expand_as(weights)


METHOD = TOVA
