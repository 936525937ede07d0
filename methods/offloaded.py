"""Shared by methods that read listed blocks: their cache may lie in host memory, with some blocks on the device."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache
from longdecode.kernels.resident_attention import resident_attention
from longdecode.methods.offloaded_cache import OffloadedCache


class Offloadable(AttentionMethod):
    """A method whose parameters say where the cache lies.

    ``params.offload``: in host memory. ``params.spare_slots``: blocks on the device beyond those that one list names;
    the block unused for longest goes first. ``params.prefetch``: each layer's blocks are chosen a layer early too, from
    the hidden state at hand, and fetched beside the layer before it. None of these changes a result.

    ``params.overlap``: blocks are fetched while attention reads those that are on the device already. It splits the
    work of attention otherwise, on the device too, so that a result differs by rounding from one without; offloaded or
    not it is the same to the bit.
    """

    @property
    @abstractmethod
    def listed_blocks(self) -> int:
        """Most blocks that a list names, the current token's among them (one more where a list may leave it out)."""

    @property
    @abstractmethod
    def block_tokens(self) -> int:
        """Tokens in a listed block."""

    @property
    def looks_ahead(self) -> bool:
        """See ``AttentionMethod.looks_ahead``."""
        return bool(self.params.offload and self.params.prefetch)

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return a cache in host memory where the parameters ask for one."""
        if not self.params.offload:
            return None
        # One slot beside the tail, however small the budget.
        slots = max(2, self.listed_blocks + self.params.spare_slots)
        return OffloadedCache(shape, self.block_tokens, slots, self.dense_layers(), self.params.overlap)

    def attend_selected(
        self, layer: int, q: Tensor, selection: Selection, state: DecodeState, **scoring: Any
    ) -> Tensor:
        """See ``AttentionMethod.attend_selected``; with ``overlap`` all caches share one split of the work."""
        cache = state.cache
        if not self.params.overlap or not isinstance(cache, DenseCache):
            return super().attend_selected(layer, q, selection, state, **scoring)
        return resident_attention(
            q, cache.keys(layer), cache.values(layer), selection.indices, selection.counts,
            block_size=selection.block_size, kv_lengths=cache.kv_lengths, kv_tokens_read=state.kv_tokens_read[layer],
            **scoring,
        )[0]  # fmt: skip

    def look_ahead(self, layer: int, q: Tensor, state: DecodeState) -> None:
        """Choose for the guessed queries and fetch what they list."""
        selection = self.select(layer, q, state)
        if selection is not None and isinstance(state.cache, OffloadedCache):
            state.cache.prefetch(layer, selection.indices, selection.counts)

    def host_bytes(self, context_tokens: int, bytes_per_element: int) -> int:
        """Bytes that a step takes from host memory where no listed block but the current one is on the device."""
        params: Any = self.params
        if not params.offload:
            return 0
        blocks = min(self.listed_blocks, -(-context_tokens // self.block_tokens)) - 1
        layers = self.config.num_layers - len(self.dense_layers())
        head = 2 * self.config.num_kv_heads * self.config.head_dim * bytes_per_element
        return layers * blocks * self.block_tokens * head
