"""Random decoders, prompts and steps for tests that drive a decode layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.correction import Correction
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.generation import Completion, Generator, Request
from longdecode.engine.kv_cache import CacheShape, DenseCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt
from longdecode.engine.token_block import BlockHeads, TokenBlock
from longdecode.engine.weights import random_decoder
from longdecode.methods import conformance_rules
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.conformance_model import Shape
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.registry import get_method

THREE_LAYERS = ModelConfig(
    family="llama", vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=3, num_heads=4, num_kv_heads=2,
    head_dim=16, max_positions=4096, rope={"rope_theta": 10_000.0},
)  # fmt: skip
"""A tiny model of three layers with a long context."""
Heads = tuple[Tensor, Tensor, Tensor]
"""A step's queries, keys and values of one layer, ``[B, heads, 1, D]``."""


def sharp_decoder(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Decoder:
    """A random model with queries sharp enough that what is read matters."""
    made = random_decoder(config, 3, "cpu", dtype)
    for layer in made.weights.layers:
        layer.qkv[: config.num_heads * config.head_dim] *= 4
    return made


def moved(part: Any, device: str) -> Any:
    """A copy of a weights dataclass on another device."""
    values = {name: getattr(part, name) for name in type(part).__slots__}
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = value.to(device)
        elif isinstance(value, list):
            values[name] = [moved(layer, device) for layer in value]
    return type(part)(**values)


def random_prompt(
    rng: torch.Generator, config: ModelConfig, lengths: Sequence[int], capacity: int,
    dtype: torch.dtype = torch.float32, *, new_tokens: int | None = None,
) -> Prompt:  # fmt: skip
    """Prompts of random keys and values in a dense cache, NaN past their lengths."""
    more = capacity if new_tokens is None else new_tokens
    cache = DenseCache(CacheShape(config, len(lengths), capacity, torch.device("cpu"), dtype, more))
    for tensor in (cache.k, cache.v):
        tensor.fill_(float("nan"))
        for row, length in enumerate(lengths):
            part = tensor[:, row, :, :length]
            part.copy_(torch.randn(part.shape, generator=rng, dtype=dtype))
    cache.stand_at(torch.tensor(lengths))
    return Prompt((), cache, torch.empty(0), 0.0)


def run_step(method: AttentionMethod, state: DecodeState, heads: Sequence[Heads]) -> list[Tensor]:
    """Run one step on given heads, as ``Decoder.forward`` does; return every layer's output."""
    positions = state.cache.positions[:, None]
    state.begin(TokenBlock(torch.zeros_like(positions), positions), method)
    outputs = []
    for layer, (q, k, v) in enumerate(heads):
        if layer + 1 < len(heads) and isinstance(method, Offloadable):
            method.foresee(layer + 1, state)
        still = q.new_ones(len(q), 1, q.shape[-1])
        outputs.append(method.attend(layer, method.append(layer, BlockHeads(q, k, v, still, 0 * still), state), state))
    state.accept()
    return outputs


def reads_follow_the_rule(name: str, params: Mapping[str, Any], shape: Shape | None = None) -> None:
    """Hold what a method reads, with any parameters, against the rule that it states: a search in float64."""
    method, bench = get_method(name), make_bench(name, "cpu", {}, dtype=torch.float64, seed=0, shape=shape)
    given = {**bench.card.conformance.params, **params}

    def build(budget: int) -> AttentionMethod:
        return method.from_budget(budget, bench.config, **given)

    conformance_rules.reads_follow_the_rule(replace(bench, params=method.Params(**given), build=build))


def results(completions: list[Completion]) -> list[tuple[Any, ...]]:
    """All but the times."""
    return [
        (c.output_ids, c.forced_logprobs, c.finish_reason, c.read_tokens_mean, c.read_tokens_sparse, c.decode_steps)
        for c in completions
    ]


def assert_same(ours: list[Completion], theirs: list[Completion]) -> None:
    """Equal up to the rounding that another batch shape brings to log-probabilities."""
    for left, right in zip(ours, theirs, strict=True):
        assert left.forced_logprobs == pytest.approx(right.forced_logprobs, abs=2e-6)
        assert results([replace(left, forced_logprobs=())]) == results([replace(right, forced_logprobs=())])


def writes_as_full(generator: Generator, requests: list[Request], method: AttentionMethod) -> list[Completion]:
    """Run a method whose texts must be those of dense attention."""
    want = generator.run(requests, get_method("full").from_budget(None, generator.decoder.config))
    got = generator.run(requests, method)
    assert [c.output_ids for c in got] == [c.output_ids for c in want]
    return got


WINDOW = 3


@dataclass(frozen=True)
class WindowParams:
    """The correction, and whether anything is left out at all."""

    correction: Correction | None = None
    sparse: bool = True


class Window(AttentionMethod):
    """Layer 0 reads everything, the others the latest three tokens."""

    name = "window"
    Params = WindowParams

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> Window:
        return cls(WindowParams(**overrides), config)

    def __init__(self, params: WindowParams, config: ModelConfig):
        super().__init__(params, config)
        self.correction = params.correction

    def dense_layers(self) -> frozenset[int]:
        return frozenset({0})

    def select(self, layer: int, q: torch.Tensor, state: DecodeState) -> Selection | None:
        if layer == 0 or not self.params.sparse:
            return None
        shape = (q.shape[0], self.config.num_kv_heads)
        newest_first = state.kv_lengths[:, None] - 1 - torch.arange(WINDOW, device=q.device)
        counts = state.kv_lengths.clamp(max=WINDOW)[:, None].expand(shape)
        return Selection(newest_first.clamp(min=0)[:, None].expand(*shape, WINDOW), counts, 1)
