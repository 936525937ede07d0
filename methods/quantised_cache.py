"""A cache that holds every token in eight or four bits a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import refuse_if_too_large
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache, StepSlots, WholeCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.quantised_kv import (
    Fp8Layer,
    Int4Layer,
    append_quantised,
    attend_quantised,
    fill_fp8,
    fill_int4,
    new_fp8,
    new_int4,
)
from longdecode.kernels.quantised_kv.naive import RECENT, V_BLOCK, from_fp8, from_int4
from longdecode.kernels.sparse_decode_attention import EVERYTHING, sparse_decode_attention
from longdecode.methods.budgeted import build_params
from longdecode.methods.ring_cache import refuse_blocks

Bits = Literal[8, 4]


class QuantisedMethod(AttentionMethod):
    """Reads everything, from a cache of ``bits`` bits a number."""

    bits: Bits

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> QuantisedMethod:
        """See ``AttentionMethod.from_budget``; a budget is refused, because it would not be honoured."""
        if budget_tokens is not None:
            raise ConfigError(f"{cls.name} reads everything and takes no budget, got {budget_tokens} tokens")
        return cls(build_params(cls.name, cls.Params, overrides), config)

    def dense_layers(self) -> frozenset[int]:
        """Return all of them."""
        return frozenset(range(self.config.num_layers))

    def make_cache(self, shape: CacheShape) -> KVCache:
        """Return the quantised cache; a prefill fills it layer by layer, so that an exact one need not fit."""
        return QuantisedCache(shape, self.bits)


class QuantisedCache(WholeCache):
    """Every token in the slot of its position, in the formats of ``kernels.quantised_kv``.

    Args:
        shape: size of the cache.
        bits: of a number.
        exact_layers: the first layers, which are stored as they are.
        keys_by_channel: eight-bit keys have one scale a channel, not one a KV head.
        v_block: tokens of a block of eight-bit values; fewer than ``V_BLOCK`` where listed blocks are read.
    """

    def __init__(
        self, shape: CacheShape, bits: Bits, *, exact_layers: int = 0, keys_by_channel: bool = False,
        v_block: int = V_BLOCK,
    ):  # fmt: skip
        super().__init__(shape)
        self.bits, self.keys_by_channel, self.lengths = bits, keys_by_channel, self.positions
        self.first = min(exact_layers, shape.config.num_layers)
        self.exact = DenseCache(replace(shape, config=replace(shape.config, num_layers=self.first)))
        size = (shape.batch, shape.config.num_kv_heads), shape.capacity, shape.config.head_dim, shape.dtype
        make = partial(new_fp8, *size, block=v_block) if bits == 8 else partial(new_int4, *size)
        on_meta, layers = make(torch.device("meta")), shape.config.num_layers - self.first
        refuse_if_too_large(layers * sum(part.nbytes for part in on_meta), shape.device)
        self.layers = [make(shape.device) for _ in range(layers)]
        self.everything = torch.full((shape.batch, shape.config.num_kv_heads), EVERYTHING, device=shape.device)

    def fp8(self, layer: int) -> Fp8Layer:
        """Return the storage of a layer behind the exact ones, of eight bits."""
        return cast(Fp8Layer, self.layers[layer - self.first])

    def keys(self, layer: int) -> Tensor:
        """See ``WholeCache.keys``; codes behind the exact layers."""
        return self.exact.keys(layer) if layer < self.first else self.fp8(layer).k[:, :, : self.capacity]

    def values(self, layer: int) -> Tensor:
        """See ``WholeCache.values``; of the exact layers alone."""
        return self.exact.values(layer)

    def key_scale(self, layer: int) -> Tensor | None:
        """See ``WholeCache.key_scale``."""
        return None if layer < self.first else self.fp8(layer).k_scale

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``; scales and least numbers with them."""
        yield from self.exact.tensors()
        for layer in self.layers:
            yield from layer

    def counters(self) -> Iterator[tuple[Tensor, int]]:
        """See ``KVCache.counters``."""
        yield (self.positions, 0)
        yield from self.exact.counters()

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``; a full row, which is done, writes over its last slot."""
        refuse_blocks(self, width, starts)
        self.exact.begin_block(width, starts, active)
        self.slots = self.positions.clamp(max=self.shape.capacity - 1)
        self.kv_lengths = self.slots + 1

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``; page bounds behind the exact layers are of codes."""
        if layer < self.first:
            return self.exact.append(layer, heads, bounds, page_size)
        return append_quantised(
            self.layers[layer - self.first], heads.q, heads.k, heads.v, heads.cos, heads.sin, self.slots,
            q_norm=heads.q_norm, k_norm=heads.k_norm, eps=heads.eps, bounds=bounds, page_size=page_size,
        )  # fmt: skip

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``."""
        if layer < self.first:
            return self.exact.attend(layer, q, mask, kv_tokens_read)
        own = self.layers[layer - self.first]
        if self.bits == 8 and own.v.shape[4] < V_BLOCK:
            lists = self.everything[..., None], self.everything
            return self.attend_listed(layer, q, *lists, block_size=own.v.shape[4], kv_tokens_read=kv_tokens_read)
        return attend_quantised(own, q, self.kv_lengths, kv_tokens_read)

    def attend_listed(
        self, layer: int, q: Tensor, indices: Tensor, counts: Tensor, *, block_size: int, kv_tokens_read: Tensor,
        uneven: bool = False, **scoring: Any,
    ) -> Tensor:  # fmt: skip
        """See ``WholeCache.attend_listed``; codes become numbers in registers."""
        given = {"block_size": block_size, "kv_tokens_read": kv_tokens_read, "uneven": uneven, **scoring}
        if layer < self.first:
            return self.exact.attend_listed(layer, q, indices, counts, **given)
        own = self.fp8(layer)
        return sparse_decode_attention(
            q, self.keys(layer), own.v, indices, counts, kv_lengths=self.kv_lengths, k_scale=own.k_scale,
            v_scale=own.v_scale, **given,
        )[0]  # fmt: skip

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``."""
        if layer < self.first:
            return self.exact.fill_layer(layer, keys, values, lengths)
        own = self.layers[layer - self.first]
        if isinstance(own, Fp8Layer):
            fill_fp8(own, keys, values, lengths, by_channel=self.keys_by_channel)
        else:
            fill_int4(own, keys, values, lengths)

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``."""
        self.positions.copy_(tokens)
        self.exact.stand_at(tokens)

    def advance(self, counts: Tensor) -> None:
        """See ``KVCache.advance``."""
        super().advance(counts)
        self.exact.advance(counts)

    def step_slots(self) -> Iterator[StepSlots]:
        """See ``KVCache.step_slots``: of four bits the recent tokens; others are forgotten by their position alone."""
        heads = self.config.num_kv_heads
        rows = torch.arange(self.batch, device=self.device).repeat_interleave(heads)
        slots = self.positions.clamp(max=self.shape.capacity - 1)[rows] % RECENT
        for layer in self.layers:
            if isinstance(layer, Int4Layer):
                for recent in (layer.recent_k, layer.recent_v):
                    yield StepSlots(recent.flatten(0, 1), slots, rows)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``; the numbers that the codes stand for, in order of position."""
        if layer < self.first:
            return self.exact.stored_kv(layer, row, head)
        own = self.layers[layer - self.first]
        k, v = from_fp8(own) if isinstance(own, Fp8Layer) else from_int4(own, self.positions)
        stored = int(self.positions[row])
        return k[row, head, :stored], v[row, head, :stored]
