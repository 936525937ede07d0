"""StreamingLLM: attention sinks and a recent window in a cache of fixed size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.rope import inverse_frequencies
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.merge_attention import merge_attention
from longdecode.kernels.rope import rotate
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.ring_cache import RingCache


@dataclass(frozen=True, slots=True)
class StreamingParams:
    """Knobs of StreamingLLM."""

    sinks: Annotated[int, Field(ge=0)] = 4
    positions: Literal["original", "cache"] = "original"


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

    @classmethod
    def minimum_budget(cls, params: StreamingParams) -> tuple[int, str]:
        """The sinks and the current token."""
        return params.sinks + 1, f"{params.sinks} sinks and the current token"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """The whole small cache, in every layer."""
        return self.layered_traffic(context_tokens, min(context_tokens, self.budget_tokens), 0, bytes_per_element)

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return a ring; sequences that fit the budget stay in a dense cache."""
        return None if shape.capacity <= self.budget_tokens else RingCache(shape, self.budget_tokens, self.params.sinks)

    def make_method_state(self, cache: KVCache) -> Any:
        """Rotary frequencies ``[D]`` float32, each twice, where sinks need a rotation of their own."""
        if self.params.positions == "original":
            return None
        frequencies, _ = inverse_frequencies(self.config)
        return torch.cat((frequencies, frequencies)).to(cache.device)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Everything in the cache; with positions by slot, sinks and window apart, then merged."""
        cache, sinks = state.cache, self.params.sinks
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
