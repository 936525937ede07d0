"""Run a method on a tiny model and record what each layer of each step was given, read and returned."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import WHOLE, BlockHeads
from longdecode.methods.budgeted import exact_share
from longdecode.methods.card import Card
from longdecode.methods.conformance_model import (
    CONFIG,
    LARGEST_BUDGET,
    OTHER_STEPS,
    SPIKE_EVERY,
    SPIKES,
    STEPS,
    AllQueries,
    Shape,
    other_lengths,
    prompt_lengths,
    spiked_decoder,
)
from longdecode.methods.registry import get_method, get_rule, load_card
from longdecode.methods.rule import Rule


@dataclass(frozen=True, slots=True)
class Heads:
    """Hold what a layer of a step was given for the newest token and returned for it.

    Heads are ``[B, H, D]`` before rotation, the output is ``[B, Hq, D]``. Where the step ran ``T - 1`` earlier tokens
    again, ``past_k`` and ``past_v`` ``[B, Hkv, T - 1, D]`` are what the cache then held of them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    past_k: Tensor
    past_v: Tensor


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
        return self.kv_tokens_read.double() / self.cache.config.num_kv_heads

    def equals(self, other: Trace) -> bool:
        """Return true where the same logits come of the same numbers of tokens."""
        return self.logits.equal(other.logits) and self.kv_tokens_read.equal(other.kv_tokens_read)


@dataclass(frozen=True)
class Inputs:
    """Hold a tiny model, three ragged prompts and the tokens fed after them; all methods with one budget share them."""

    decoder: Decoder
    prompts: list[Tensor]
    fed: Tensor
    """``[B, T]`` int64."""

    def requests(self, rows: Sequence[int] | None = None, new_tokens: int = 0) -> list[Request]:
        """Return the given rows as requests: their fed tokens are forced, ``new_tokens`` follow."""
        fed = self.fed.tolist()
        rows = range(len(fed)) if rows is None else rows
        return [Request(tuple(self.prompts[row].tolist()), new_tokens, tuple(fed[row])) for row in rows]

    @torch.no_grad()
    def trace(
        self, method: AttentionMethod, rows: Sequence[int] | None = None, poison: bool = False, shared: bool = False
    ) -> Trace:
        """Prefill and decode the given rows of the batch; the one place that knows how the engine is driven.

        Args:
            method: runs with the state of one generation; keeps none.
            rows: rows of the batch, in this order; all if left out.
            poison: fill every buffer with NaN beforehand.
            shared: cut down a dense prompt that other methods share, instead of a prefill of the method's own.
        """
        rows = range(len(self.prompts)) if rows is None else rows
        with uninitialised_memory_is_nan(poison), _observed(method) as heads:
            generator = Generator(self.decoder, prefill_tokens=64 * len(rows))
            requests = self.requests(rows)
            shared = shared and method.prefills_densely
            prompt = generator.prefill(requests, [method]) if shared else generator.prefill_for(requests, method)
            state = method.start(prompt, keep_prompt=shared)
            fed, logits, reads = self.fed[list(rows)], [], []
            for step in range(fed.shape[1]):
                before = state.counted.clone()
                logits.append(self.decoder.step(fed[:, step], state, method))
                reads.append(state.counted - before)
        layers = self.decoder.config.num_layers
        by_step = [heads[first : first + layers] for first in range(0, len(heads), layers)]
        return Trace(torch.stack(logits, dim=1), torch.stack(reads), state.cache, by_step)

    @cached_property
    def full(self) -> Trace:
        """Return dense attention on the same inputs."""
        return self.trace(get_method("full").from_budget(None, self.decoder.config))

    @cached_property
    def prompt_queries(self) -> Tensor:
        """Return the rotated queries of the prompts, ``[L, B, Hq, n, D]``."""
        observer = AllQueries()
        cache = self.decoder.new_cache(len(self.prompts), max(map(len, self.prompts)))
        self.decoder.prefill(self.prompts, cache, 64 * len(self.prompts), observers=[observer])
        return observer.queries


@dataclass(frozen=True)
class MethodBench:
    """Hold one method with one set of parameters, and the inputs to run it on."""

    card: Card
    params: Any
    """The method's ``Params`` as asked for, whatever the method makes of them."""
    build: Callable[[int], AttentionMethod]
    rule: type[Rule] | None
    inputs: Inputs
    budget: int
    list_factor: int
    """Lists that each fetch for one KV head: 1, or the group's size, or what the knob of the card's ``times`` says."""

    @property
    def decoder(self) -> Decoder:
        """Return the tiny model."""
        return self.inputs.decoder

    @property
    def config(self) -> ModelConfig:
        """Return the tiny model's shape."""
        return self.inputs.decoder.config

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
        return self.inputs.trace(self.method)

    @cached_property
    def shuffled(self) -> tuple[list[int], Trace]:
        """Return an order of the rows and the decode in it, with every buffer full of NaN beforehand."""
        order = [2, 0, 1]
        return order, self.inputs.trace(self.build(self.budget), order, poison=True)

    @cached_property
    def governed_heads(self) -> list[int]:
        """Return by layer how many KV heads the budget governs."""
        return [self.config.num_kv_heads - len(dense) for dense in self.method.dense_heads()]

    def declared_budgets(self) -> list[list[int]]:
        """Return by step and row the budget in tokens; the small one, unless the parameters let it grow."""
        share = exact_share(getattr(self.params, "share", None) or 0)
        lengths = [[len(prompt) + step + 1 for prompt in self.prompts] for step in range(self.fed.shape[1])]
        return [[max(self.budget, math.floor(share * length)) for length in row] for row in lengths]

    def layer_budgets(self, layers: Sequence[int]) -> list[list[list[int]]]:
        """Return by step, layer and row the budget that the method states for the layer, the declared where none.

        A method that keeps every decoded token has cut the prompt for its own length.
        """
        decoded = not self.card.slack.per_generated_token
        return [
            [
                [self.method.budget_of(layer, len(prompt) + (step + 1) * decoded) or declared
                 for prompt, declared in zip(self.prompts, row, strict=True)]
                for layer in layers
            ]
            for step, row in enumerate(self.declared_budgets())
        ]  # fmt: skip

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


def make_bench(
    name: str,
    device: torch.device | str,
    overrides: Mapping[str, Any],
    *,
    dtype: torch.dtype,
    seed: int,
    shape: Shape | None = None,
) -> MethodBench:
    """Make the tiny model, inputs and a builder for one method and one set of parameters.

    The budget is the card's; where the parameters need more, it is doubled until they accept it. ``shape`` is one of
    ``OTHER_SHAPES``; the model has the heads of ``CONFIG`` where it is left out.

    Raises:
        UnsupportedCellError: the parameters accept no budget up to ``LARGEST_BUDGET``.
    """
    card, method = load_card(name), get_method(name)
    overrides = {**card.conformance.params, **card.portable(overrides)}
    card = card.model_copy(update={"conformance": card.conformance_of(overrides)})
    takes_budget = card.limits.min_budget_tokens is not None
    config = CONFIG if shape is None else shape.config

    def build(budget: int) -> AttentionMethod:
        return method.from_budget(budget if takes_budget else None, config, **overrides)

    own_lists = any(card.variant_params(key).items() <= dict(overrides).items() for key in card.slack.per_query_head)
    budget = _accepted(build, card.conformance.budget_tokens)
    params = method.Params(**overrides)
    times = getattr(params, card.slack.times) if card.slack.times else 1
    return MethodBench(
        card=card,
        params=params,
        build=build,
        rule=get_rule(name),
        inputs=make_inputs(torch.device(device), dtype, seed, budget, STEPS if shape is None else OTHER_STEPS, shape),
        budget=budget,
        list_factor=times * (config.group_size if own_lists else 1),
    )


@lru_cache(maxsize=8)
def make_inputs(
    device: torch.device, dtype: torch.dtype, seed: int, budget: int, steps: int, shape: Shape | None = None
) -> Inputs:
    """Make the tiny model and inputs for a budget."""
    config = CONFIG if shape is None else shape.config
    generator = torch.Generator().manual_seed(seed)
    decoder = spiked_decoder(config, seed, device, dtype, generator)

    def ids(length: int, start: int) -> Tensor:
        drawn = torch.randint(SPIKES, config.vocab_size, (length,), generator=generator)
        place = torch.arange(start, start + length)
        spike = torch.randint(SPIKES, (length,), generator=generator)
        lonely = torch.rand(length, generator=generator) < 0.5
        # The last slot of a page that is filled while decoding always holds one.
        return torch.where((place % SPIKE_EVERY == SPIKE_EVERY - 1) & (lonely | (start > 0)), spike, drawn)

    lengths = prompt_lengths(budget) if shape is None else other_lengths(budget)
    prompts = [ids(length, 0) for length in lengths]
    fed = torch.stack([ids(steps, length) for length in lengths])
    return Inputs(decoder, prompts, fed.to(device))


def run_step_without_values(bench: MethodBench) -> None:
    """Run a step on tensors that have shapes and no values.

    Raises:
        GateError: a hook looks at a value.
    """
    steps, config = bench.fed.shape[1], bench.config
    meta, rows, capacity = torch.device("meta"), len(bench.prompts), max(map(len, bench.prompts)) + steps
    shape = CacheShape(config, rows, capacity, meta, torch.float32, steps)
    method = bench.build(bench.budget)
    k = torch.empty(rows, config.num_kv_heads, method.window, config.head_dim, device=meta)
    q = k.repeat_interleave(config.group_size, dim=1)
    angles = torch.empty(rows, method.window, config.head_dim, device=meta)
    try:
        state = method.decode_in(method.make_cache(shape) or DenseCache(shape))
        state.begin(method.step_block(torch.empty(rows, dtype=torch.int64, device=meta), state), method)
        for layer in range(config.num_layers):
            state.attend(layer, BlockHeads(q, k, k, angles, angles), method, WHOLE)
        state.end(method)
        state.accept()
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


@contextmanager
def _observed(method: AttentionMethod) -> Iterator[list[Heads]]:
    """Record what each layer of each step is given and returns, while inside."""
    seen: list[Heads] = []
    given: list[BlockHeads] = []
    append, attend = method.append, method.attend

    def recorded_append(layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        given.append(heads)
        return append(layer, heads, state)

    def recorded_attend(layer: int, q: Tensor, state: DecodeState) -> Tensor:
        heads = given.pop()
        past = [heads.k[:, :, :0], heads.v[:, :, :0]]
        if repeats := state.block.repeats:
            slots = state.block.positions[:, None, :repeats, None]
            slots = slots.expand(-1, method.config.num_kv_heads, -1, method.config.head_dim)
            past = [part(layer).gather(2, slots) for part in (state.dense.keys, state.dense.values)]
        out = attend(layer, q, state)
        newest = (part[:, :, -1].clone() for part in (heads.q, heads.k, heads.v, out))
        seen.append(Heads(*newest, *past))
        return out

    vars(method).update(append=recorded_append, attend=recorded_attend)
    try:
        yield seen
    finally:
        del vars(method)["append"], vars(method)["attend"]


@contextmanager
def uninitialised_memory_is_nan(on: bool) -> Iterator[None]:
    """Fill what ``torch.empty`` returns with NaN while inside."""
    if not on:
        yield
        return
    mode, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms imports torch's compiler: 3 s
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
