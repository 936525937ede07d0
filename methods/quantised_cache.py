"""A cache that holds every token in eight or four bits a number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import refuse_if_too_large
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache, StepSlots
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.layout import accumulator
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.quantised_kv import (
    Fp8Layer,
    Int4Layer,
    append_quantised,
    attend_quantised,
    fill_fp8,
    fill_int4,
)
from longdecode.kernels.quantised_kv.naive import GROUP, RECENT, V_BLOCK, from_fp8, from_int4
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


class QuantisedCache(KVCache):
    """Every token in the slot of its position, in the formats of ``kernels.quantised_kv``.

    Args:
        shape: size of the cache.
        bits: of a number.
        exact_layers: the first layers, which are stored as they are.
        keys_by_channel: eight-bit keys have one scale a channel, not one a KV head.
    """

    def __init__(self, shape: CacheShape, bits: Bits, *, exact_layers: int = 0, keys_by_channel: bool = False):
        super().__init__(shape)
        self.bits, self.keys_by_channel = bits, keys_by_channel
        self.first = min(exact_layers, shape.config.num_layers)
        self.exact = DenseCache(replace(shape, config=replace(shape.config, num_layers=self.first)))
        make = _new_fp8 if bits == 8 else _new_int4
        on_meta, layers = make(shape, torch.device("meta")), shape.config.num_layers - self.first
        refuse_if_too_large(layers * sum(part.nbytes for part in on_meta), shape.device)
        self.layers = [make(shape, shape.device) for _ in range(layers)]

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
        """See ``KVCache.append``; takes no page bounds."""
        if layer < self.first:
            return self.exact.append(layer, heads)
        return append_quantised(
            self.layers[layer - self.first], heads.q, heads.k, heads.v, heads.cos, heads.sin, self.slots,
            q_norm=heads.q_norm, k_norm=heads.k_norm, eps=heads.eps,
        )  # fmt: skip

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``."""
        if layer < self.first:
            return self.exact.attend(layer, q, mask, kv_tokens_read)
        return attend_quantised(self.layers[layer - self.first], q, self.kv_lengths, kv_tokens_read)

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


def _new_fp8(shape: CacheShape, device: torch.device) -> Fp8Layer:
    """Return storage of one layer whose scales are 1 until a prompt sets them."""
    lists, dim = (shape.batch, shape.config.num_kv_heads), shape.config.head_dim
    blocks = -(-shape.capacity // V_BLOCK)
    codes = (torch.zeros(*lists, blocks * V_BLOCK * dim, dtype=torch.uint8, device=device) for _ in range(2))
    k, v = (part.view(torch.float8_e4m3fn) for part in codes)
    scales = (torch.ones(size, dtype=accumulator(shape.dtype), device=device) for size in ((*lists, dim), lists))
    return Fp8Layer(k.unflatten(2, (-1, dim)), v.unflatten(2, (blocks, dim, V_BLOCK)), *scales)


def _new_int4(shape: CacheShape, device: torch.device) -> Int4Layer:
    """Return storage of one layer."""
    lists, dim = (shape.batch, shape.config.num_kv_heads), shape.config.head_dim
    groups, runs = max(1, shape.capacity // GROUP), -(-dim // GROUP)

    def empty(*size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(*lists, *size, dtype=dtype, device=device)

    codes, half = torch.uint8, torch.float16
    return Int4Layer(
        k=empty(groups, GROUP, dim // 2, dtype=codes),
        k_scale=empty(groups, dim, dtype=half),
        k_least=empty(groups, dim, dtype=half),
        v=empty(groups, dim, GROUP // 2, dtype=codes),
        v_scale=empty(groups, runs, GROUP, dtype=half),
        v_least=empty(groups, runs, GROUP, dtype=half),
        recent_k=empty(RECENT, dim, dtype=shape.dtype),
        recent_v=empty(RECENT, dim, dtype=shape.dtype),
    )
