"""Make the tiny models that conformance runs a method on: heads, prompt lengths, keys that stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longdecode.engine.decoder import Decoder
from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver, Seen
from longdecode.engine.weights import random_decoder

CONFIG = ModelConfig(
    family="llama", vocab_size=96, hidden_size=64, intermediate_size=96, num_layers=7,
    num_heads=4, num_kv_heads=2, head_dim=32, max_positions=4096, rope={"rope_theta": 10_000.0},
)  # fmt: skip
STEPS = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads of a tiny model: KV heads, query heads of each, numbers of a head."""

    kv_heads: int
    group: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.kv_heads} KV heads of {self.head_dim}, {self.group} query heads each"

    @property
    def config(self) -> ModelConfig:
        """Return ``CONFIG`` with these heads and ``OTHER_LAYERS``."""
        heads = self.kv_heads * self.group
        layers = min(CONFIG.num_layers, OTHER_LAYERS)
        return replace(CONFIG, num_layers=layers, num_heads=heads, num_kv_heads=self.kv_heads, head_dim=self.head_dim)


OTHER_SHAPES = (Shape(1, 8, 128), Shape(3, 1, 16), Shape(3, 3, 64))
"""Heads that those of ``CONFIG`` do not stand for, checked over fewer steps and shorter prompts."""
OTHER_STEPS = 2
OTHER_LAYERS = 6
LARGEST_BUDGET = 512
"""Budgets above this would take the tiny model too long."""
SPIKES = 4
"""The first ids of the vocabulary: their keys stand out in every channel, by a vector of their own in every layer."""
SPIKE_EVERY = 16
"""Spikes stand in the last slot of pages of this size, so that bounds which leave it out rank pages wrongly."""


def spiked_decoder(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> Decoder:
    """Make a random model in which the keys of the first ``SPIKES`` ids stand out; ``generator`` draws by how much."""
    decoder = random_decoder(config, seed, device, dtype)
    keys = slice(config.num_heads * config.head_dim, (config.num_heads + config.num_kv_heads) * config.head_dim)
    decoder.weights.embedding.mul_(4)
    decoder.weights.embedding[:, :SPIKES] = 0
    decoder.weights.embedding[range(SPIKES), range(SPIKES)] = 2.0
    for layer in decoder.weights.layers:
        # Random projections attend almost evenly; sharper queries make what is read matter.
        layer.qkv[: keys.start] *= 2
        layer.qkv[:, :SPIKES] = 0
        stand_out = 0.3 * torch.randn(keys.stop - keys.start, SPIKES, generator=generator).sign()
        layer.qkv[keys, :SPIKES] = stand_out.to(layer.qkv)
        for writes in (layer.o, layer.down):
            writes[:SPIKES] = 0
    return decoder


def prompt_lengths(budget: int) -> tuple[int, ...]:
    """Return the lengths of the prompts: a little under four budgets, one token over two, and a little under one.

    So rows cross multiples of the budget while they decode, and one is barely longer than the budget.
    """
    return 4 * budget - 3, 2 * budget + 1, budget - 3


def other_lengths(budget: int) -> tuple[int, ...]:
    """Return the lengths with ``OTHER_SHAPES``: a page over the budget, and two that are much shorter than it."""
    return budget + budget // 4 + 1, 5, 1


class AllQueries(PrefillObserver):
    """Keep all queries of a prefill."""

    key = "all_queries"

    def begin(self, shape: CacheShape, lengths: Sequence[int]) -> None:
        """See ``PrefillObserver.begin``."""
        config = shape.config
        size = (config.num_layers, shape.batch, config.num_heads, max(lengths), config.head_dim)
        self.queries = torch.zeros(size, device=shape.device, dtype=shape.dtype)

    def see(self, seen: Seen) -> None:
        """See ``PrefillObserver.see``."""
        self.queries[seen.layer, seen.rows, :, seen.start : seen.start + seen.q.shape[2]] = seen.q

    def layer(self, layer: int) -> Tensor:
        """See ``PrefillObserver.layer``."""
        return self.queries[layer]
