"""The few calls of the engine that this room makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

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


def last_logits(folder: Path, ids: Sequence[int]) -> Tensor:
    """Return the engine's float32 logits ``[V]`` after ``ids`` on the CPU."""
    generator = full_generator(folder, "cpu", torch.float32)
    return generator.prefill([Request(tuple(ids), max_new_tokens=1)]).logits[0]
