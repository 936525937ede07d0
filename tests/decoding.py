"""Random decoders, prompts and steps for tests that drive a decode layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
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


def kept(n: int, budget: int, sinks: int) -> list[int]:
    """Tokens of ``n`` that a ring of ``budget`` holds: sinks and the latest."""
    return [p for p in range(n) if p < sinks or p >= n - (budget - sinks)]


def reads_follow_the_rule(name: str, params: Mapping[str, Any], shape: Shape | None = None) -> None:
    """Hold what a method reads, with any parameters, against the rule that it states: a search in float64."""
    method, bench = get_method(name), make_bench(name, "cpu", {}, dtype=torch.float64, seed=0, shape=shape)
    given = {**bench.card.conformance.params, **params}

    def build(budget: int) -> AttentionMethod:
        return method.from_budget(budget, bench.config, **given)

    conformance_rules.reads_follow_the_rule(replace(bench, params=method.Params(**given), build=build))
