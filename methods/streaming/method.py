"""StreamingLLM: attention sinks and a recent window in a cache of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.rope import inverse_frequencies
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.merge_attention import merge_attention
from longdecode.kernels.rope import rotate
from longdecode.methods.budgeted import BudgetedMethod, Share
from longdecode.methods.kept_cache import KeptCache, latest_and_best
from longdecode.methods.ring_cache import RingCache


@dataclass(frozen=True, slots=True)
class StreamingParams:
    """Knobs of StreamingLLM."""

    sinks: Annotated[int, Field(ge=0)] = 4
    positions: Literal["original", "cache"] = "original"
    dense_layers: Annotated[int, Field(ge=0)] = 0
    share: Share = None


class Streaming(BudgetedMethod):
    """The first ``sinks`` tokens and the latest ``budget - sinks``, the current one among them; the rest is dropped.

    With ``positions: cache`` the rotary distance to a sink is counted in cache slots: it stops growing once tokens are
    dropped. Keys are not rewritten for that; the query is turned back by the number of dropped tokens for the sinks
    alone, which gives the same scores, because a score depends on the difference of two rotations only.

    Source: Xiao et al. 2023 (arXiv 2309.17453), section 3.2, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "streaming"
    Params: ClassVar[type] = StreamingParams
    params: StreamingParams

    def __init__(self, params: StreamingParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        if params.positions == "cache" and not self._rings:
            raise ConfigError("streaming: positions = 'cache' counts slots of a ring: no dense_layers and no share")

    @classmethod
    def minimum_budget(cls, params: StreamingParams) -> tuple[int, str]:
        """The sinks and the current token."""
        return params.sinks + 1, f"{params.sinks} sinks and the current token"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """The whole small cache, in every governed layer."""
        read = min(context_tokens, self.budget_at(context_tokens))
        return self.layered_traffic(context_tokens, read, 0, bytes_per_element)

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return a ring, a cache of slots where layers differ or grow, and none where all fits the budget."""
        most = self.budget_at(shape.capacity)
        if shape.capacity <= most:
            return None
        if self._rings:
            return RingCache(shape, most, self.params.sinks)
        governed = [n not in self.dense_layers() for n in range(self.config.num_layers)]
        capacities = [most if layer else shape.capacity for layer in governed]
        return KeptCache(shape, capacities, capacities, self.growth, governed)

    @property
    def _rings(self) -> bool:
        """One size for all layers and steps."""
        return self.growth is None and not self.params.dense_layers

    def keep_layer(
        self, cache: KVCache, layer: int, keys: Tensor, values: Tensor, lengths: Tensor,
        observed: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Keep the sinks and the latest tokens of the prompt."""
        if not isinstance(cache, KeptCache) or layer in self.dense_layers():
            cache.fill_layer(layer, keys, values, lengths)
            return
        total = min(self.budget_at(keys.shape[2]), keys.shape[2])
        budgets = torch.full_like(lengths, self.budget_tokens) if self.growth is None else self.growth.of(lengths)
        places = torch.arange(keys.shape[2], device=keys.device)
        first = torch.where(places < self.params.sinks, 1.0, 0.0).expand(*keys.shape[:2], -1)
        positions = latest_and_best(first, lengths, budgets - self.params.sinks, total, budgets)
        cache.keep(layer, keys, values, positions, lengths.minimum(budgets))
        self._choose_victims(cache, layer, cache.lengths[layer])

    def _choose_victims(self, cache: KeptCache, layer: int, lengths: Tensor) -> None:
        """Choose each head's oldest token that is no sink."""
        positions = cache.slot_positions[layer]
        stored = torch.arange(positions.shape[2], device=positions.device) < lengths[..., None]
        old = torch.where(stored & (positions >= self.params.sinks), positions, cache.shape.capacity)
        cache.victims[layer] = old.argmin(dim=2)

    def make_method_state(self, cache: KVCache) -> Any:
        """Rotary frequencies ``[D]`` float32, each twice, where sinks need a rotation of their own."""
        if self.params.positions == "original":
            return None
        frequencies, _ = inverse_frequencies(self.config)
        return torch.cat((frequencies, frequencies)).to(cache.device)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Everything in the cache; with positions by slot, sinks and window apart, then merged."""
        cache, sinks = state.cache, self.params.sinks
        if isinstance(cache, KeptCache) and layer not in self.dense_layers():
            out = self.attend_all(layer, q, state)
            cache.record_newest(layer)
            self._choose_victims(cache, layer, cache.kv_lengths[layer])
            return out
        if self.params.positions == "original" or not isinstance(cache, RingCache) or sinks == 0:
            return super().attend(layer, q, state)
        angles = (cache.evicted()[:, None].to(state.method_state.dtype) * state.method_state)[:, None]
        turned_back = rotate(q, angles.cos(), -angles.sin())
        keys, values, kv_tokens_read = cache.k[layer], cache.v[layer], state.kv_tokens_read[layer]
        near, far = (cache.kv_lengths - sinks).clamp(min=0), cache.kv_lengths.clamp(max=sinks)
        first = decode_attention(
            turned_back, keys[:, :, :sinks], values[:, :, :sinks], far, kv_tokens_read=kv_tokens_read
        )
        window = decode_attention(q, keys[:, :, sinks:], values[:, :, sinks:], near, kv_tokens_read=kv_tokens_read)
        return merge_attention(*first, *window)[0]


METHOD = Streaming
