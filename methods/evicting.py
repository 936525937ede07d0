"""Shared by methods that evict a token in every step, chosen from the attention of the step before."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor

from longdecode.engine.attention import Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.kernels.attention_weights import attention_weights
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.kept_cache import KeptCache, latest_and_best


class EvictingMethod(BudgetedMethod):
    """Keeps ``budget`` tokens per KV head in every layer but the first ``params.dense_layers``.

    A budget that grows makes room for a token whenever it has grown by one; what was evicted before never returns.

    The prompt is attended to densely, then cut. In a step the new token replaces the victim that was chosen after the
    step before, everything kept is read, and the next victim is chosen by score.
    """

    latest: int
    """Latest tokens that are always kept, the current one among them."""

    group: ClassVar[str]
    """Merge the weights of a group's query heads by ``sum`` or ``mean``."""

    @abstractmethod
    def prompt_scores(self, keys: Tensor, lengths: Tensor, observed: Mapping[str, Tensor]) -> Tensor:
        """Score the prompt's tokens, ``[B, Hkv, S]`` by position.

        Args:
            keys: ``[B, Hkv, S, D]`` of one layer.
            lengths: ``[B]`` int64.
            observed: by observer key, what was kept of the layer.
        """

    @abstractmethod
    def update_scores(self, scores: Tensor, given: Tensor) -> None:
        """Update the scores of the stored tokens in place.

        Args:
            scores: ``[B, Hkv, C]`` by slot.
            given: ``[B, Hkv, C]``, the attention that the current query gave, reduced over the group.
        """

    def latest_at(self, lengths: Tensor) -> int | Tensor:
        """Return how many latest tokens rows of these lengths ``[B]`` always keep, for all rows or ``[B]``."""
        return self.latest

    def dense_layers(self) -> frozenset[int]:
        """Return the first layers, as many as the parameters say."""
        return frozenset(range(min(self.params.dense_layers, self.config.num_layers)))

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the budget, whose keys are read once more for the probabilities."""
        read = min(context_tokens, self.budget_at(context_tokens))
        governed = self.config.num_layers - len(self.dense_layers())
        again = governed * read * self.token_bytes(bytes_per_element) // 2
        return self.layered_traffic(context_tokens, read, again, bytes_per_element)

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return room for the budget; sequences that fit it stay in a dense cache."""
        most = self.budget_at(shape.capacity)
        if shape.capacity <= most:
            return None
        governed = [n not in self.dense_layers() for n in range(self.config.num_layers)]
        capacities = [most if layer else shape.capacity for layer in governed]
        return KeptCache(shape, capacities, capacities, self.growth, governed)

    def keep_layer(
        self,
        cache: KVCache,
        layer: int,
        keys: Tensor,
        values: Tensor,
        lengths: Tensor,
        observed: Mapping[str, Tensor],
    ) -> None:
        """Cut the prompt to the budget and choose the first victim."""
        if layer in self.dense_layers():
            cache.fill_layer(layer, keys, values, lengths)
            return
        kept = cast(KeptCache, cache)
        scores = self.prompt_scores(keys, lengths, observed)
        total = min(self.budget_at(keys.shape[2]), keys.shape[2])
        limits = None if self.growth is None else self.growth.of(lengths)
        # As many as the first step protects, without its own token.
        positions = latest_and_best(scores, lengths, self._protected(lengths + 1) - 1, total, limits)
        kept.keep(layer, keys, values, positions, lengths)
        kept.scores[layer][:, :, :total] = scores.gather(2, positions.clamp(max=keys.shape[2] - 1))
        self._choose_victims(kept, layer, kept.lengths[layer], lengths)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read what is kept, update the scores, and choose who makes room for the next token."""
        cache = state.cache
        if not isinstance(cache, KeptCache):
            return self.attend_all(layer, q, state)
        out, lse = cache.attend_with_lse(layer, q, state.kv_tokens_read[layer])
        if layer not in self.dense_layers():
            lengths = cache.kv_lengths[layer]
            given = attention_weights(q, cache.k[layer], lengths, group=self.group, lse=lse)
            self.update_scores(cache.scores[layer], given)
            self._choose_victims(cache, layer, lengths, cache.positions + 1)
        return out

    def _protected(self, lengths: Tensor) -> int | Tensor:
        """Return how many latest tokens no step evicts: its own, the one before it, and the latest."""
        latest = self.latest_at(lengths)
        return max(2, latest) if isinstance(latest, int) else latest.clamp(min=2)

    def _choose_victims(self, cache: KeptCache, layer: int, lengths: Tensor, next_position: Tensor) -> None:
        """Choose the lowest score among the tokens that are neither read for the first time nor among the latest."""
        positions = cache.slot_positions[layer]
        stored = torch.arange(positions.shape[2], device=positions.device) < lengths[..., None]
        protected = next_position - self._protected(next_position + 1)
        free = stored & (positions <= protected[:, None, None])
        cache.victims[layer] = torch.where(free, cache.scores[layer], torch.inf).argmin(dim=2)
