"""Run a method on a tiny model and record what each layer of each step was given, read and returned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DecodeState, TokenHeads
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.methods.card import Card
from longdecode.methods.registry import get_method, get_rule, load_card
from longdecode.methods.rule import Rule

CONFIG = ModelConfig(
    family="llama", vocab_size=96, hidden_size=64, intermediate_size=96, num_layers=7,
    num_heads=4, num_kv_heads=2, head_dim=32, max_positions=4096, rope={"rope_theta": 10_000.0},
)  # fmt: skip
STEPS = 8
LARGEST_BUDGET = 512
"""Budgets above this would take the tiny model too long."""
SPIKES = 4
"""The first ids of the vocabulary: their keys stand out in every channel, by a vector of their own in every layer."""
SPIKE_EVERY = 16
"""Spikes stand in the last slot of pages of this size, so that bounds which leave it out rank pages wrongly."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Hold what a layer of a step was given, heads ``[B, H, D]`` before rotation, and its output ``[B, Hq, D]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor


@dataclass(frozen=True, slots=True)
class Trace:
    """Hold one decode of given tokens.

    ``logits`` is ``[B, T, V]``, ``kv_tokens_read`` ``[T, L, B]`` int64 summed over KV heads, ``cache`` the cache at the
    end, ``heads`` by step and layer.
    """

    logits: Tensor
    kv_tokens_read: Tensor
    cache: KVCache
    heads: list[list[Heads]]

    @property
    def reads(self) -> Tensor:
        """Return the tokens read per KV head, ``[T, L, B]`` float64."""
        return self.kv_tokens_read.double() / CONFIG.num_kv_heads

    def equals(self, other: Trace) -> bool:
        """Return true where the same logits come of the same numbers of tokens."""
        return self.logits.equal(other.logits) and self.kv_tokens_read.equal(other.kv_tokens_read)


@dataclass(frozen=True)
class Inputs:
    """Hold a tiny model, three ragged prompts and the tokens fed after them; all methods with one budget share them.

    The prompts are a little under four budgets, one token over two, and a little under one. So rows cross multiples of
    the budget while they decode, and one is barely longer than the budget.
    """

    decoder: Decoder
    prompts: list[Tensor]
    fed: Tensor
    """``[B, T]`` int64."""

    def trace(
        self, method: AttentionMethod, rows: list[int] | None = None, poison: bool = False, observe: bool = True
    ) -> Trace:
        """Prefill and decode the given rows of the batch, all in order if left out."""
        rows = list(range(len(self.prompts))) if rows is None else rows
        return _decode(self.decoder, method, [self.prompts[row] for row in rows], self.fed[rows], poison, observe)

    @cached_property
    def full(self) -> Trace:
        """Return dense attention on the same inputs."""
        return self.trace(get_method("full").from_budget(None, CONFIG))

    @cached_property
    def prompt_queries(self) -> list[list[Tensor]]:
        """Return by position and layer the queries ``[B, Hq, D]`` of the prompts' tokens, before rotation.

        Prefill does not show them, so that full attention is fed the prompts token by token. Shorter rows run on. The
        first token can only attend to itself: its queries stand for any.
        """
        full = get_method("full").from_budget(None, CONFIG)
        longest = max(map(len, self.prompts))
        ids = torch.stack([prompt.repeat(longest // len(prompt) + 1)[:longest] for prompt in self.prompts])
        steps = _decode(self.decoder, full, list(ids[:, :1]), ids[:, 1:].to(self.fed.device), False, True).heads
        return [[heads.q for heads in layers] for layers in (steps[0], *steps)]


@dataclass(frozen=True)
class Bench:
    """Hold one method with one set of parameters, and the inputs to run it on."""

    card: Card
    params: Any
    """The method's ``Params`` as asked for, whatever the method makes of them."""
    build: Callable[[int], AttentionMethod]
    rule: type[Rule] | None
    inputs: Inputs
    budget: int
    list_factor: int
    """Lists that each fetch for one KV head: 1, or the group's size where query heads have lists of their own."""

    @property
    def decoder(self) -> Decoder:
        """Return the tiny model."""
        return self.inputs.decoder

    @property
    def prompts(self) -> list[Tensor]:
        """Return the prompts."""
        return self.inputs.prompts

    @property
    def fed(self) -> Tensor:
        """Return the tokens fed after the prompts, ``[B, T]`` int64."""
        return self.inputs.fed

    @property
    def full(self) -> Trace:
        """Return dense attention on the same inputs."""
        return self.inputs.full

    @property
    def takes_budget(self) -> bool:
        """Return true where the card names a smallest budget."""
        return self.card.limits.min_budget_tokens is not None

    @property
    def whole_budget(self) -> int:
        """Return a budget over the longest context, a multiple of the small one."""
        return 5 * self.budget

    @cached_property
    def method(self) -> AttentionMethod:
        """Return the method with the small budget; ``small`` is its first run."""
        return self.build(self.budget)

    @cached_property
    def small(self) -> Trace:
        """Return the decode with the small budget."""
        return self.trace(self.method)

    @cached_property
    def shuffled(self) -> tuple[list[int], Trace]:
        """Return an order of the rows and the decode in it, with every buffer full of NaN beforehand."""
        order = [2, 0, 1]
        return order, self.trace(self.build(self.budget), order, poison=True)

    @cached_property
    def governed_heads(self) -> list[int]:
        """Return by layer how many KV heads the budget governs."""
        return [CONFIG.num_kv_heads - len(dense) for dense in self.method.dense_heads()]

    def governed_layers(self) -> list[int]:
        """Return the layers in which the budget governs some head."""
        return [layer for layer, heads in enumerate(self.governed_heads) if heads]

    def accepts(self, budget: int) -> bool:
        """Return true where the parameters accept a budget."""
        try:
            self.build(budget)
        except UnsupportedCellError:
            return False
        return True

    def trace(self, method: AttentionMethod, rows: list[int] | None = None, poison: bool = False) -> Trace:
        """Prefill and decode the given rows of the batch, all in order if left out."""
        return self.inputs.trace(method, rows, poison)


def make_bench(
    name: str, device: torch.device | str, overrides: Mapping[str, Any], *, dtype: torch.dtype, seed: int
) -> Bench:
    """Make the tiny model, inputs and a builder for one method and one set of parameters.

    The budget is the card's; where the parameters need more, it is doubled until they accept it.

    Raises:
        UnsupportedCellError: the parameters accept no budget up to ``LARGEST_BUDGET``.
    """
    card, method = load_card(name), get_method(name)
    overrides = {**card.conformance.params, **card.portable(overrides)}
    takes_budget = card.limits.min_budget_tokens is not None

    def build(budget: int) -> AttentionMethod:
        return method.from_budget(budget if takes_budget else None, CONFIG, **overrides)

    own_lists = any(card.variant_params(key).items() <= dict(overrides).items() for key in card.slack.per_query_head)
    budget = _accepted(build, card.conformance.budget_tokens)
    return Bench(
        card=card,
        params=method.Params(**overrides),
        build=build,
        rule=get_rule(name),
        inputs=make_inputs(torch.device(device), dtype, seed, budget, STEPS),
        budget=budget,
        list_factor=CONFIG.group_size if own_lists else 1,
    )


@lru_cache(maxsize=4)
def make_inputs(device: torch.device, dtype: torch.dtype, seed: int, budget: int, steps: int) -> Inputs:
    """Make the tiny model and inputs for a budget."""
    generator = torch.Generator().manual_seed(seed)
    decoder = random_decoder(CONFIG, seed, device, dtype)
    keys = slice(CONFIG.num_heads * CONFIG.head_dim, (CONFIG.num_heads + CONFIG.num_kv_heads) * CONFIG.head_dim)
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

    def ids(length: int, start: int) -> Tensor:
        drawn = torch.randint(SPIKES, CONFIG.vocab_size, (length,), generator=generator)
        place = torch.arange(start, start + length)
        spike = torch.randint(SPIKES, (length,), generator=generator)
        lonely = torch.rand(length, generator=generator) < 0.5
        # The last slot of a page that is filled while decoding always holds one.
        return torch.where((place % SPIKE_EVERY == SPIKE_EVERY - 1) & (lonely | (start > 0)), spike, drawn)

    lengths = (4 * budget - 3, 2 * budget + 1, budget - 3)
    prompts = [ids(length, 0) for length in lengths]
    fed = torch.stack([ids(steps, length) for length in lengths])
    return Inputs(decoder, prompts, fed.to(device))


def run_step_without_values(bench: Bench) -> None:
    """Run a step on tensors that have shapes and no values.

    Raises:
        GateError: a hook looks at a value.
    """
    meta, rows = torch.device("meta"), len(bench.prompts)
    cache = KVCache(CONFIG, rows, max(map(len, bench.prompts)) + STEPS, device=meta, dtype=torch.float32)
    method = bench.build(bench.budget)
    k = torch.empty(rows, CONFIG.num_kv_heads, 1, CONFIG.head_dim, device=meta)
    q = k.repeat_interleave(CONFIG.group_size, dim=1)
    angles = torch.empty(rows, 1, CONFIG.head_dim, device=meta)
    try:
        state = method.start(cache)
        method.before_step(state)
        for layer in range(CONFIG.num_layers):
            method.attend(layer, method.append(layer, TokenHeads(q, k, k, angles, angles), state), state)
        method.after_step(state)
        state.finish_step()
    except (RuntimeError, NotImplementedError) as error:
        raise GateError(f"a step needs a tensor's value: {error}") from error


def _accepted(build: Callable[[int], AttentionMethod], budget: int) -> int:
    """Return the budget, doubled until the method accepts it."""
    while True:
        try:
            build(budget)
        except UnsupportedCellError:
            budget *= 2
            if budget > LARGEST_BUDGET:
                raise
        else:
            return budget


@torch.no_grad()
def _decode(
    decoder: Decoder, method: AttentionMethod, prompts: list[Tensor], fed: Tensor, poison: bool, observe: bool
) -> Trace:
    """Prefill and decode: the one place that knows how the engine is driven."""
    with _uninitialised_memory_is_nan(poison), _observed(method, observe) as heads:
        cache = decoder.new_cache(len(prompts), max(map(len, prompts)) + fed.shape[1])
        if poison:
            cache.k.fill_(float("nan"))
            cache.v.fill_(float("nan"))
        decoder.prefill(prompts, cache, 64 * len(prompts))
        state = method.start(cache, keep_prompt=False)
        logits, reads = [], []
        for step in range(fed.shape[1]):
            before = state.counted.clone()
            logits.append(decoder.step(fed[:, step], state, method))
            reads.append(state.counted - before)
    layers = CONFIG.num_layers
    by_step = [heads[first : first + layers] for first in range(0, len(heads), layers)]
    return Trace(torch.stack(logits, dim=1), torch.stack(reads), state.cache, by_step)


@contextmanager
def _observed(method: AttentionMethod, on: bool) -> Iterator[list[Heads]]:
    """Record what ``append`` is given and ``attend`` returns, while inside."""
    seen: list[Heads] = []
    if not on:
        yield seen
        return
    append, attend = method.append, method.attend
    given: list[TokenHeads] = []

    def recorded_append(layer: int, token: TokenHeads, state: DecodeState) -> Tensor:
        given.append(token)
        return append(layer, token, state)

    def recorded_attend(layer: int, q: Tensor, state: DecodeState) -> Tensor:
        token = given.pop()
        out = attend(layer, q, state)
        seen.append(Heads(*(heads[:, :, 0].clone() for heads in (token.q, token.k, token.v, out))))
        return out

    own = {"append": recorded_append, "attend": recorded_attend}
    vars(method).update(own)
    try:
        yield seen
    finally:
        for name in own:
            del vars(method)[name]


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
