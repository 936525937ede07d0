"""A dense method and a way to make ragged prompts, for tests of the engine alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.decoder import Decoder
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import load_decoder


@pytest.fixture
def decoder(tiny_checkpoint: Callable[[str], Path]) -> Decoder:
    """In float64, so that the rounding of another batch shape never decides between two tokens."""
    return load_decoder(tiny_checkpoint("llama3"), device="cpu", dtype=torch.float64)


@pytest.fixture
def dense() -> Callable[[ModelConfig], AttentionMethod]:
    """Maker of the dense method for a model."""
    return lambda config: DenseAttention((), config)
