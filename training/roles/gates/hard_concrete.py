"""Hard Concrete gates: a logistic variable through a sigmoid, stretched and clipped."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from longdecode.training.roles.gates.gate import ONE_AT, STRETCH_HIGH, STRETCH_LOW, ZERO_AT, HeadGates

TEMPERATURE = 2 / 3
_NODES = 64


class HardConcreteGates(HeadGates):
    """``z = clip(s (q - p) + p, 0, 1)`` with ``s = sigmoid((log u - log(1 - u) + log_a) / (2/3))``.

    ``log_a`` starts at 0, where ``z`` is symmetric about 0.5.

    Source: Louizos et al. 2018 (arXiv 1712.01312), section 2.2 and equation 12 (temperature, stretch).
    """

    kind: ClassVar[str] = "hard_concrete"

    def __init__(self, layers: int, kv_heads: int):
        super().__init__(layers, kv_heads)
        self.log_alpha = nn.Parameter(torch.zeros(layers, kv_heads))

    def sample(self, noise: Tensor) -> Tensor:
        """See ``HeadGates.sample``; gradients are pathwise and vanish where a draw is clipped."""
        soft = torch.sigmoid((torch.logit(noise) + self.log_alpha) / TEMPERATURE)
        return (soft * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW).clamp(0.0, 1.0)

    def p_zero(self) -> Tensor:
        """``sigmoid(T logit(k0) - log_a)`` with ``k0 = 1/12``, so that ``logit(k0) = log(0.1 / 1.1)``."""
        return torch.sigmoid(TEMPERATURE * _logit(ZERO_AT) - self.log_alpha)

    def p_nonzero(self) -> Tensor:
        """``sigmoid(log_a - T logit(k0))``."""
        return torch.sigmoid(self.log_alpha - TEMPERATURE * _logit(ZERO_AT))

    def p_one(self) -> Tensor:
        """``sigmoid(log_a - T logit(k1))`` with ``k1 = 11/12``."""
        return torch.sigmoid(self.log_alpha - TEMPERATURE * _logit(ONE_AT))

    @torch.no_grad()
    def mean(self) -> Tensor:
        """``E[z]``, the integral of ``P(z > t)`` over ``t`` in [0, 1], by Gauss-Legendre quadrature."""
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        at = ((nodes + 1) / 2 - STRETCH_LOW) / (STRETCH_HIGH - STRETCH_LOW)
        logits = torch.as_tensor(np.log(at) - np.log1p(-at)).to(self.log_alpha)
        above = torch.sigmoid(self.log_alpha[..., None] - TEMPERATURE * logits)
        return above @ torch.as_tensor(weights / 2).to(self.log_alpha)

    @torch.no_grad()
    def score(self) -> Tensor:
        """``sigmoid(log_a)``: the gate without noise, before stretching; over 0.5 where ``log_a > 0``."""
        return torch.sigmoid(self.log_alpha)

    @torch.no_grad()
    def clamp_(self) -> None:
        """Nothing: ``log_a`` may take any value."""


def _logit(value: float) -> float:
    return math.log(value) - math.log1p(-value)
