"""Shared by methods that cut the prompt once, by what its last queries attend to: SnapKV and those that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, cast

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
class WindowParams:
    """Knobs of a cut by the prompt's last queries."""

    window: Annotated[int, Field(ge=1)] = 32
    kernel_size: Annotated[int, Field(ge=1)] = 5
    pooling: Literal["avg", "max"] = "avg"
    share: Share = None

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0:
            # Pooled over an even number a token has no place in the middle, and its score is another token's too.
            raise ConfigError(f"kernel_size = {self.kernel_size}; an odd number (1, 3, 5, ...) is needed")


class WindowCut(BudgetedMethod):
    """Keeps the prompt's last ``window`` tokens and those that the window attends to most; decoded tokens are all kept.

    A token's score is the attention that the window's queries give it, summed over them, averaged over the query heads
    of the group, and pooled over its neighbours before the window. ``budget_of`` may differ by layer and ``counts`` by
    head; a prompt of no more tokens than the budget is kept whole.
    """

    params: WindowParams

    @classmethod
    def minimum_budget(cls, params: WindowParams) -> tuple[int, str]:
        """Return the window and one token that is chosen."""
        return params.window + 1, f"a window of {params.window} and one token"

    def counts(self, layer: int, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return how many tokens of the prompt a layer keeps, ``[B]`` or by KV head ``[B, Hkv]`` int64.

        Args:
            layer: from 0.
            scores: ``[B, Hkv, S]`` by position, zero in the window and past a row's length.
            lengths: ``[B]`` int64, tokens of each row.
        """
        budgets = [self.budget_of(layer, tokens) for tokens in lengths.tolist()]
        return lengths.minimum(torch.tensor(budgets, device=lengths.device))

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the prompt's part; every decoded token adds one to it."""
        layers = range(self.config.num_layers)
        kept = [min(context_tokens, self.budget_of(layer, context_tokens)) for layer in layers]
        return self.summed_traffic(context_tokens, kept, 0, bytes_per_element)

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return room for the budget and all decoded tokens; sequences that fit it stay in a dense cache."""
        if shape.capacity <= self.budget_at(shape.capacity):
            return None
        layers = range(self.config.num_layers)
        kept = [min(self.budget_of(layer, shape.capacity), shape.capacity) for layer in layers]
        capacities = [min(tokens + shape.decoded, shape.capacity) for tokens in kept]
        return KeptCache(shape, capacities, kept, self.growth, [True] * len(layers), grows=False)

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return the observer of the window's queries."""
        return (LatestQueries(self.params.window),)

    def keep_layer(
        self, cache: KVCache, layer: int, keys: Tensor, values: Tensor, lengths: Tensor,
        observed: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Score the prompt by its last queries and keep the best."""
        window, size = self.params.window, self.params.kernel_size
        received = attention_weights(observed[LatestQueries(window).key], keys, lengths, group="mean")
        before_window = torch.arange(keys.shape[2], device=keys.device) < lengths[:, None, None] - window
        received = torch.where(before_window, received, 0.0)
        pool = avg_pool1d if self.params.pooling == "avg" else max_pool1d
        scores = pool(received, kernel_size=size, stride=1, padding=size // 2)[..., : keys.shape[2]]
        scores = torch.where(before_window, scores, 0.0)
        counts = self.counts(layer, scores, lengths)
        positions = latest_and_best(scores, lengths, window, int(counts.max()), counts)
        cast(KeptCache, cache).keep(layer, keys, values, positions, counts)
