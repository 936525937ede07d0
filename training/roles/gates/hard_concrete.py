"""Hard Concrete gates: a logistic variable through a sigmoid, stretched and clipped."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from longdecode.training.roles.gates.gate import FLOOR, STRETCH_HIGH, STRETCH_LOW, ZERO_AT, HeadGates

TEMPERATURE = 2 / 3


class HardConcreteGates(HeadGates):
    """``z = clip(s (q - p) + p, 0, 1)`` with ``s = sigmoid((log u - log(1 - u) + log_a) / (2/3))``.

    ``log_a`` starts at 0, where ``z`` is symmetric about 0.5.

    Source: Louizos et al. 2018 (arXiv 1712.01312), section 2.2 and equation 12 (temperature, stretch).
    """

    kind: ClassVar[str] = "hard_concrete"

    def __init__(self, layers: int, kv_heads: int, floor: float = FLOOR):
        super().__init__(layers, kv_heads, floor)
        self.log_alpha = nn.Parameter(torch.zeros(layers, kv_heads))

    def sample(self, noise: Tensor) -> Tensor:
        """See ``HeadGates.sample``; gradients are pathwise and vanish where a draw is clipped."""
        soft = torch.sigmoid((torch.logit(noise) + self.log_alpha) / TEMPERATURE)
        return (soft * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW).clamp(0.0, 1.0)

    def p_nonzero(self) -> Tensor:
        """``sigmoid(log_a - T logit(k0))`` with ``k0 = 1/12``, so that ``logit(k0) = log(0.1 / 1.1)``."""
        return torch.sigmoid(self.log_alpha - TEMPERATURE * _logit(ZERO_AT))

    @torch.no_grad()
    def score(self) -> Tensor:
        """``sigmoid(log_a)``: the gate without noise, before stretching; over 0.5 where ``log_a > 0``."""
        return torch.sigmoid(self.log_alpha)

    @torch.no_grad()
    def clamp_(self) -> None:
        """Keep ``P(z != 0)`` in [floor, 1 - floor]."""
        if self.floor:
            middle, reach = TEMPERATURE * _logit(ZERO_AT), _logit(1.0 - self.floor)
            self.log_alpha.clamp_(middle - reach, middle + reach)


def _logit(value: float) -> float:
    return math.log(value) - math.log1p(-value)
