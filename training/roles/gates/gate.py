"""Define the interface of gates: samples, closed forms, and a score that ranks heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

STRETCH_LOW, STRETCH_HIGH = -0.1, 1.1
"""Ends of the stretched interval; what falls outside [0, 1] is clipped, which gives 0 and 1 a mass of their own."""
ZERO_AT = (0.0 - STRETCH_LOW) / (STRETCH_HIGH - STRETCH_LOW)
"""Unstretched value that stretching maps to 0: 1/12."""
ONE_AT = (1.0 - STRETCH_LOW) / (STRETCH_HIGH - STRETCH_LOW)
"""Unstretched value that stretching maps to 1: 11/12."""
NOISE_LOW, NOISE_HIGH = 0.001, 0.999
"""Range of the uniform noise, which keeps samples and their gradients finite."""


class HeadGates(nn.Module, ABC):
    """One gate ``z`` in [0, 1] for each (layer, KV head): 1 is full attention, 0 sparse.

    Parameters are float32 ``[L, Hkv]`` whatever the model's dtype.
    """

    kind: ClassVar[str]

    def __init__(self, layers: int, kv_heads: int):
        super().__init__()
        self.layers = layers
        self.kv_heads = kv_heads

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Differentiable draws ``[N, L, Hkv]`` from uniform noise of that shape (see ``uniform``)."""

    @abstractmethod
    def p_zero(self) -> Tensor:
        """Probability that a gate is exactly 0, ``[L, Hkv]``, differentiable."""

    @abstractmethod
    def p_one(self) -> Tensor:
        """Probability that a gate is exactly 1, ``[L, Hkv]``, differentiable."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Expectation of the gate, ``[L, Hkv]``, without gradient."""

    @abstractmethod
    def score(self) -> Tensor:
        """Return a score that ranks heads, ``[L, Hkv]``, without gradient; over 0.5, a head is taken to retrieve."""

    @abstractmethod
    def clamp_(self) -> None:
        """Bring the parameters back into their range after an optimiser step."""

    def p_nonzero(self) -> Tensor:
        """Probability that a gate is not 0, ``[L, Hkv]``; its sum is ``E ||z||_0``."""
        return 1.0 - self.p_zero()

    def uniform(self, draws: int, generator: torch.Generator) -> Tensor:
        """Noise ``[N, L, Hkv]`` for ``sample``, on the generator's device."""
        noise = torch.rand(draws, self.layers, self.kv_heads, generator=generator, device=generator.device)
        return NOISE_LOW + (NOISE_HIGH - NOISE_LOW) * noise
