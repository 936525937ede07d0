"""A decode driven layer by layer with random vectors, against softmax over brute-force token sets in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from decoding import random_prompt
from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt
from longdecode.engine.token_block import BlockHeads, TokenBlock

Choose = Callable[[int, int, int, Tensor, Tensor], list[int]]
"""(layer, row, query head, the row's queries ``[Hq, D]``, its KV head's keys ``[n, D]``) -> the tokens it reads."""


@pytest.fixture
def config() -> ModelConfig:
    """Seven layers, two KV heads that serve three query heads each."""
    return ModelConfig(
        family="llama", vocab_size=10, hidden_size=8, intermediate_size=8, num_layers=7, num_heads=6,
        num_kv_heads=2, head_dim=8, max_positions=256, rope={"rope_theta": 100.0},
    )  # fmt: skip


@pytest.fixture
def prompt_cache(rng: torch.Generator, config: ModelConfig) -> Callable[[list[int], int], Prompt]:
    """A function of lengths and capacity: random prompts in a float64 cache, NaN past their lengths."""

    return lambda lengths, capacity: random_prompt(rng, config, lengths, capacity, torch.float64)


@pytest.fixture
def attend() -> Callable[..., Tensor]:
    """A function that runs one layer of a step on heads that are already rotated."""

    def run(method: AttentionMethod, layer: int, q: Tensor, k: Tensor, v: Tensor, state: DecodeState) -> Tensor:
        still = q.new_ones(len(q), 1, q.shape[-1])
        q = method.append(layer, BlockHeads(q, k, v, still, 0 * still), state)
        return method.attend(layer, q, state)

    return run


@pytest.fixture
def begin() -> Callable[[AttentionMethod, DecodeState], None]:
    """A function that begins a step of one token a row."""

    def run(method: AttentionMethod, state: DecodeState) -> None:
        positions = state.cache.positions[:, None]
        state.begin(TokenBlock(torch.zeros_like(positions), positions), method)

    return run


@pytest.fixture
def decode_against(
    rng: torch.Generator,
    begin: Callable[[AttentionMethod, DecodeState], None],
    attend: Callable[..., Tensor],
    config: ModelConfig,
    prompt_cache: Callable[[list[int], int], Prompt],
) -> Callable[..., DecodeState]:
    """A function that decodes with a method and compares every output with attention over the sets ``choose`` names."""

    def run(method: AttentionMethod, choose: Choose, lengths: list[int], steps: int) -> DecodeState:
        prompt = prompt_cache(lengths, max(lengths) + steps)
        state = method.start(prompt)
        keys, values = prompt.cache.k, prompt.cache.v  # grows as an ordinary cache beside the method's own
        group = config.group_size
        for step in range(steps):
            begin(method, state)
            for layer in range(config.num_layers):
                q, k, v = (
                    torch.randn(len(lengths), heads, 1, config.head_dim, generator=rng, dtype=torch.float64)
                    for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
                )
                out = attend(method, layer, q, k, v, state)
                for row, length in enumerate(lengths):
                    n = length + step + 1
                    keys[layer, row, :, n - 1], values[layer, row, :, n - 1] = k[row, :, 0], v[row, :, 0]
                    for head in range(config.num_heads):
                        seen = keys[layer, row, head // group, :n]
                        tokens = choose(layer, row, head, q[row, :, 0], seen)
                        weights = (seen[tokens] @ q[row, head, 0] / math.sqrt(config.head_dim)).softmax(0)
                        want = weights @ values[layer, row, head // group, tokens]
                        torch.testing.assert_close(out[row, head, 0], want, msg=f"{step=} {layer=} {row=} {head=}")
            state.end(method)
            state.accept()
        return state

    return run
