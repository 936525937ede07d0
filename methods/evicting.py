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
from longdecode.kernels.eviction import choose_victims
from longdecode.kernels.layout import accumulator
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.kept_cache import KeptCache, latest_and_best

NOTED_BYTES = 8
"""Bytes beside keys and values that a step reads of each token kept: its score and its position."""


class EvictingMethod(BudgetedMethod):
    """Keeps ``budget`` tokens per KV head in every layer but the first ``params.dense_layers``.

    A budget that grows makes room for a token whenever it has grown by one; what was evicted before never returns.

    The prompt is attended to densely, then cut. In a step the new token replaces the victim that was chosen after the
    step before, everything kept is read, once, and the next victim is chosen by score, which follows from the
    logits that the read leaves.
    """

    latest: int
    """Latest tokens that are always kept, the current one among them."""

    eviction: ClassVar[str]
    """Score the stored tokens by a rule of ``kernels.eviction``."""

    @abstractmethod
    def prompt_scores(self, keys: Tensor, lengths: Tensor, observed: Mapping[str, Tensor]) -> Tensor:
        """Score the prompt's tokens, ``[B, Hkv, S]`` by position.

        Args:
            keys: ``[B, Hkv, S, D]`` of one layer.
            lengths: ``[B]`` int64.
            observed: by observer key, what was kept of the layer.
        """

    def latest_at(self, lengths: Tensor) -> int | Tensor:
        """Return how many latest tokens rows of these lengths ``[B]`` always keep, for all rows or ``[B]``."""
        return self.latest

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the budget, and a score and a position of each token kept."""
        read = min(context_tokens, self.budget_at(context_tokens))
        governed = self.config.num_layers - len(self.dense_layers())
        noted = governed * self.config.num_kv_heads * read * NOTED_BYTES
        return self.layered_traffic(context_tokens, read, noted, bytes_per_element)

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return room for the budget; sequences that fit it stay in a dense cache."""
        most = self.budget_at(shape.capacity)
        if shape.capacity <= most:
            return None
        governed = [n not in self.dense_layers() for n in range(self.config.num_layers)]
        capacities = [most if layer else shape.capacity for layer in governed]
        return KeptCache(shape, capacities, capacities, self.growth, governed)

    def keep_layer(
        self, cache: KVCache, layer: int, keys: Tensor, values: Tensor, lengths: Tensor,
        observed: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
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
        kept.keep(layer, keys, values, positions, lengths if limits is None else lengths.minimum(limits))
        kept.scores[layer][:, :, :total] = scores.gather(2, positions.clamp(max=keys.shape[2] - 1))
        self._choose_first_victims(kept, layer, lengths)

    def before_step(self, state: DecodeState) -> None:
        """Work out which tokens no head of any layer evicts after the step."""
        if isinstance(cache := state.cache, KeptCache):
            cache.protected = self._protected_from(cache.positions + 1)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read what is kept, once, and choose by the scores of that read who makes room for the next token."""
        cache = state.cache
        if not isinstance(cache, KeptCache) or layer in self.dense_layers():
            return self.attend_all(layer, q, state)
        size = (*q.shape[:2], cache.k[layer].shape[2])
        logits = torch.empty(size, dtype=accumulator(q.dtype), device=q.device)
        out, lse = cache.attend_with_lse(layer, q, state.kv_tokens_read[layer], logits)
        self._choose_victims(cache, layer, logits, lse[..., 0])
        return out

    def _protected(self, lengths: Tensor) -> int | Tensor:
        """Return how many latest tokens no step evicts: its own, the one before it, and the latest."""
        latest = self.latest_at(lengths)
        return max(2, latest) if isinstance(latest, int) else latest.clamp(min=2)

    def _protected_from(self, next_position: Tensor) -> Tensor:
        """Return the first position ``[B]`` that is not evicted for the token at ``next_position`` ``[B]``."""
        return next_position - self._protected(next_position + 1) + 1

    def _choose_first_victims(self, cache: KeptCache, layer: int, tokens: Tensor) -> None:
        """Choose by the scores of a prompt of ``tokens`` ``[B]`` tokens what its first step replaces."""
        positions = cache.slot_positions[layer]
        stored = torch.arange(positions.shape[2], device=positions.device) < cache.lengths[layer][..., None]
        free = stored & (positions < self._protected_from(tokens)[:, None, None])
        cache.victims[layer] = torch.where(free, cache.scores[layer], torch.inf).argmin(dim=2)

    def _choose_victims(self, cache: KeptCache, layer: int, logits: Tensor, lse: Tensor) -> None:
        """Choose the lowest score among the tokens that are neither read for the first time nor among the latest."""
        choose_victims(
            logits, lse, cache.kv_lengths[layer], cache.slot_mapping[layer], cache.positions, cache.protected,
            cache.slot_positions[layer], cache.scores[layer], cache.victims[layer], rule=self.eviction,
        )  # fmt: skip
