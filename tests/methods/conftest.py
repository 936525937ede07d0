"""A decode driven layer by layer with random vectors."""

from __future__ import annotations

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
        return method.attend(layer, method.append(layer, BlockHeads(q, k, v, still, 0 * still), state), state)

    return run


@pytest.fixture
def begin() -> Callable[[AttentionMethod, DecodeState], None]:
    """A function that begins a step of one token a row."""

    def run(method: AttentionMethod, state: DecodeState) -> None:
        positions = state.cache.positions[:, None]
        state.begin(TokenBlock(torch.zeros_like(positions), positions), method)

    return run
