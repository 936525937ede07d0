"""SnapKV: keep what the prompt's last queries attend to, once, at the end of the prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from longdecode.engine.attention import Traffic
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.prefill import PrefillObserver
from longdecode.kernels.attention_weights import attention_weights
from longdecode.methods.budgeted import BudgetedMethod, Share
from longdecode.methods.kept_cache import KeptCache, latest_and_best
from longdecode.methods.prefill_scores import LatestQueries


@dataclass(frozen=True, slots=True)
class SnapKVParams:
    """Knobs of SnapKV."""

    window: Annotated[int, Field(ge=1)] = 32
    kernel_size: Annotated[int, Field(ge=1)] = 5
    pooling: Literal["avg", "max"] = "avg"
    share: Share = None

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0:
            # Pooled over an even number a token has no place in the middle, and its score is another token's too.
            raise ConfigError(f"snapkv: kernel_size = {self.kernel_size}; an odd number (1, 3, 5, ...) is needed")


class SnapKV(BudgetedMethod):
    """``budget`` tokens of the prompt per KV head: its last ``window``, and those that the window attends to most.

    A token's score is the attention that the window's queries give it, summed over them, averaged over the query heads
    of the group, and pooled over its neighbours before the window. Decoded tokens are all kept.

    Source: Li et al. 2024, SnapKV (arXiv 2404.14469), listing 1, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "snapkv"
    Params: ClassVar[type] = SnapKVParams
    params: SnapKVParams

    @classmethod
    def minimum_budget(cls, params: SnapKVParams) -> tuple[int, str]:
        """Return the window and one token that is chosen."""
        return params.window + 1, f"a window of {params.window} and one token"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the prompt's part; every decoded token adds one to it."""
        return self.layered_traffic(
            context_tokens, min(context_tokens, self.budget_at(context_tokens)), 0, bytes_per_element
        )

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return room for the budget and all decoded tokens; sequences that fit it stay in a dense cache."""
        most, layers = self.budget_at(shape.capacity), self.config.num_layers
        if shape.capacity <= most:
            return None
        capacities = [min(most + shape.decoded, shape.capacity)] * layers
        return KeptCache(shape, capacities, [most] * layers, self.growth, [True] * layers, grows=False)

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return the observer of the window's queries."""
        return (LatestQueries(self.params.window),)

    def keep_layer(
        self,
        cache: KVCache,
        layer: int,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        observed: Mapping[str, Tensor],
    ) -> None:
        """Score the prompt by its last queries and keep the best."""
        window, size = self.params.window, self.params.kernel_size
        received = attention_weights(observed[LatestQueries(window).key], keys, lengths, group="mean")
        before_window = torch.arange(keys.shape[2], device=keys.device) < lengths[:, None, None] - window
        received = torch.where(before_window, received, 0.0)
        pool = avg_pool1d if self.params.pooling == "avg" else max_pool1d
        scores = pool(received, kernel_size=size, stride=1, padding=size // 2)[..., : keys.shape[2]]
        total = min(self.budget_at(keys.shape[2]), keys.shape[2])
        limits = None if self.growth is None else self.growth.of(lengths)
        positions = latest_and_best(scores, lengths, window, total, limits)
        cast(KeptCache, cache).keep(layer, keys, values, positions, lengths)


METHOD = SnapKV
