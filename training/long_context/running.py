"""The few calls of the engine that this room makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from longdecode.engine.generation import Completion, Generator, Request
from longdecode.engine.weights import load_decoder
from longdecode.methods.registry import get_method


def full_generator(folder: Path, device: str, dtype: torch.dtype) -> Generator:
    """Load a model for generation."""
    return Generator(load_decoder(folder, device=device, dtype=dtype))


def answer(generator: Generator, requests: Sequence[Request]) -> list[Completion]:
    """Prefill and decode one batch with Full attention."""
    method = get_method("full").from_budget(None, generator.decoder.config)
    return generator.run(requests, method)
