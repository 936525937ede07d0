"""Training samples as token ids: a context that is prefilled, and the target tokens behind it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TargetSample:
    """One sample: ``context`` is prefilled densely, ``targets`` run through teacher and student and all count."""

    context: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """Samples of equal lengths, on the CPU: ``contexts`` ``[B, P]`` and ``targets`` ``[B, T]`` int64."""

    contexts: Tensor
    targets: Tensor

    @property
    def start(self) -> int:
        """Position of the first target."""
        return self.contexts.shape[1]


class SampleSource(ABC):
    """Makes samples of a given length; the same random numbers make the same sample."""

    read: Sequence[str] = ()
    """Names of the books behind the samples, or a count and hash of the questions."""

    @abstractmethod
    def sample(self, rng: random.Random, context_tokens: int) -> TargetSample:
        """One sample of about ``context_tokens`` tokens, targets included."""

    def batch(self, rngs: Sequence[random.Random], context_tokens: int) -> TargetBatch:
        """One sample for each of ``rngs``."""
        samples = [self.sample(rng, context_tokens) for rng in rngs]
        return TargetBatch(
            torch.tensor([sample.context for sample in samples]), torch.tensor([sample.targets for sample in samples])
        )


def context_lengths(low: int, high: int, count: int) -> tuple[int, ...]:
    """``count`` evenly spaced lengths from ``low`` to ``high``, both included."""
    if count == 1 or low == high:
        return (high,)
    return tuple(low + round(i * (high - low) / (count - 1)) for i in range(count))
