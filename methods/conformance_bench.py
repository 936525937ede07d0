"""The tiny model, the inputs and the traced decode that the conformance checks share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.methods.card import Card
from longdecode.methods.registry import get_method, load_card

CONFIG = ModelConfig(
    family="llama", vocab_size=96, hidden_size=64, intermediate_size=96, num_layers=7,
    num_heads=4, num_kv_heads=2, head_dim=32, max_positions=512, rope={"rope_theta": 10_000.0},
)  # fmt: skip
PROMPT_TOKENS = (147, 80, 30)
STEPS = 12
BUDGET = 64
WHOLE_BUDGET = 192
"""A budget over the longest context, and whole pages of up to 64 tokens."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One decode of given tokens: ``logits`` ``[B, T, V]``, ``reads`` ``[T, L, B]`` per step, the cache at its end."""

    logits: Tensor
    reads: Tensor
    cache: KVCache


@dataclass(frozen=True)
class Bench:
    """One method with one set of parameters on the tiny model, and inputs for it."""

    card: Card
    build: Callable[[int], AttentionMethod]
    decoder: Decoder
    prompts: list[Tensor]
    fed: Tensor
    """``[B, T]`` int64, the tokens fed after the prompts."""
    list_factor: int
    """Lists that each fetch for one KV head: 1, or the group's size where query heads have lists of their own."""

    @property
    def takes_budget(self) -> bool:
        """Whether the card names a smallest budget."""
        return self.card.limits.min_budget_tokens is not None

    @cached_property
    def full(self) -> Trace:
        """Dense attention on the same inputs."""
        return self.trace(get_method("full").from_budget(None, CONFIG))

    @cached_property
    def small(self) -> Trace:
        """The method with the small budget."""
        return self.trace(self.build(BUDGET))

    @cached_property
    def governed_heads(self) -> list[int]:
        """By layer, how many KV heads the budget governs."""
        return [CONFIG.num_kv_heads - len(dense) for dense in self.build(BUDGET).dense_heads()]

    def governed_layers(self) -> list[int]:
        """Layers in which the budget governs some head."""
        return [layer for layer, heads in enumerate(self.governed_heads) if heads]

    def trace(self, method: AttentionMethod, rows: list[int] | None = None, poison: bool = False) -> Trace:
        """Prefill and decode the given rows of the batch (all, in order, if left out)."""
        rows = list(range(len(self.prompts))) if rows is None else rows
        capacity = max(PROMPT_TOKENS) + STEPS
        with _uninitialised_memory_is_nan(poison):
            cache = self.decoder.new_cache(len(rows), capacity)
            if poison:
                cache.k.fill_(float("nan"))
                cache.v.fill_(float("nan"))
            self.decoder.prefill([self.prompts[row] for row in rows], cache, 64 * len(rows))
            state = method.start(cache)
            logits, reads = [], []
            for step in range(STEPS):
                before = state.reads.clone()
                logits.append(self.decoder.step(self.fed[rows, step], state, method))
                reads.append(state.reads - before)
        return Trace(torch.stack(logits, dim=1), torch.stack(reads), state.cache)


def make_bench(
    name: str, device: torch.device | str, overrides: Mapping[str, Any], *, dtype: torch.dtype, seed: int
) -> Bench:
    """The tiny model, inputs and a builder for one method and one set of parameters."""
    device = torch.device(device)
    card, method = load_card(name), get_method(name)
    overrides = card.portable(overrides)
    generator = torch.Generator().manual_seed(seed)
    decoder = random_decoder(CONFIG, seed, device, dtype)
    for layer in decoder.weights.layers:
        # Random projections attend almost evenly; sharper queries make what is read matter.
        layer.qkv[: CONFIG.num_heads * CONFIG.head_dim] *= 4

    def build(budget: int) -> AttentionMethod:
        takes = card.limits.min_budget_tokens is not None
        return method.from_budget(budget if takes else None, CONFIG, **overrides)

    def tokens(*shape: int) -> Tensor:
        return torch.randint(CONFIG.vocab_size, shape, generator=generator)

    own_lists = any(card.variant_params(key).items() <= dict(overrides).items() for key in card.slack.per_query_head)
    return Bench(
        card=card,
        build=build,
        decoder=decoder,
        prompts=[tokens(length) for length in PROMPT_TOKENS],
        fed=tokens(len(PROMPT_TOKENS), STEPS).to(device),
        list_factor=CONFIG.group_size if own_lists else 1,
    )


@contextmanager
def _uninitialised_memory_is_nan(on: bool) -> Iterator[None]:
    """Fill what ``torch.empty`` returns with NaN while inside."""
    if not on:
        yield
        return
    mode, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
