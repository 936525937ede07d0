"""Validation of the miniature in training: share of answer items predicted exactly, given the true text before."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from longdecode.evals.generators import chain, lookup, narrative
from longdecode.evals.generators.prose import Episode

_MAKERS = {
    "single": lambda rng, size: lookup.recall(rng, "single", size),
    "multikey": lambda rng, size: lookup.recall(rng, "multikey", size),
    "two_hop": lambda rng, size: lookup.recall(rng, "two_hop", size),
    "longgen_15": lambda rng, size: lookup.longgen(rng, 15, size),
    "longgen_45": lambda rng, size: lookup.longgen(rng, 45, size),
    "chain_8": lambda rng, size: chain.chain(rng, 8, size),
    "chain_16": lambda rng, size: chain.chain(rng, 16, size),
    "story": lambda rng, size: Episode(narrative.narrative(rng, size), "", ""),
}
_SMALLEST = {"longgen_15": 768, "longgen_45": 2048, "chain_8": 512, "chain_16": 1024}


@torch.no_grad()
def validate(model: nn.Module, length: int, tokens: int, device: torch.device) -> dict[str, float]:
    """Item accuracy of each task at one length, over ``tokens // length`` episodes a task."""
    rows = tokens // length
    report: dict[str, float] = {}
    for name, make in _MAKERS.items():
        if length < _SMALLEST.get(name, 0):
            continue
        rng = random.Random(f"validation {name} {length}")
        episodes = [make(rng, length) for _ in range(rows)]
        ids = torch.from_numpy(np.stack([_ids(episode) for episode in episodes])).to(device)
        right = model(ids)[:, :-1].argmax(-1) == ids[:, 1:]
        marks = [mark for episode, row in zip(episodes, right, strict=True) for mark in _marks(episode, row)]
        report[name] = round(float(np.mean(marks)), 4)
    return report


def _ids(episode: Episode) -> np.ndarray:
    return np.frombuffer(episode.text.encode("ascii"), dtype=np.uint8).astype(np.int64)


def _marks(episode: Episode, right: Tensor) -> list[bool]:
    """One mark an item, or a retold fact: every byte of it was predicted (``right[i]`` speaks of byte ``i + 1``)."""
    spans: list[tuple[int, int]] = []
    start = len(episode.prompt) + len(episode.question)
    for item in episode.items:
        spans.append((start, len(item)))
        start += len(item) + 1
    if not episode.items:
        spans = [(statement.start, len(statement.value)) for statement in narrative.retold(episode.text)]
    return [bool(right[start - 1 : start - 1 + size].all()) for start, size in spans]
