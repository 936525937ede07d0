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
NOISE_LOW, NOISE_HIGH = 0.001, 0.999
"""Range of the uniform noise, which keeps samples and their gradients finite."""
FLOOR = 0.01
"""Least probability of a noisy gate to be on, and to be off: without draws of either kind it has no gradient left."""


class HeadGates(nn.Module, ABC):
    """One gate ``z`` in [0, 1] for each (layer, KV head): 1 is full attention, 0 sparse.

    Parameters are float32 ``[L, Hkv]`` whatever the model's dtype. ``floor`` bounds ``P(z != 0)`` from 0 and from 1.
    """

    kind: ClassVar[str]

    def __init__(self, layers: int, kv_heads: int, floor: float = FLOOR):
        super().__init__()
        self.floor = floor
        self.layers = layers
        self.kv_heads = kv_heads

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Differentiable draws ``[N, L, Hkv]`` from uniform noise of that shape (see ``uniform``)."""

    @abstractmethod
    def p_nonzero(self) -> Tensor:
        """Probability that a gate is not 0, ``[L, Hkv]``, differentiable; its sum is ``E ||z||_0``."""

    @abstractmethod
    def score(self) -> Tensor:
        """Return a score that ranks heads, ``[L, Hkv]``, without gradient; over 0.5, a head is taken to retrieve."""

    @abstractmethod
    def clamp_(self) -> None:
        """Bring the parameters back into their range after an optimiser step."""

    def uniform(self, draws: int, generator: torch.Generator) -> Tensor:
        """Noise ``[N, L, Hkv]`` for ``sample``, on the generator's device."""
        noise = torch.rand(draws, self.layers, self.kv_heads, generator=generator, device=generator.device)
        return NOISE_LOW + (NOISE_HIGH - NOISE_LOW) * noise
