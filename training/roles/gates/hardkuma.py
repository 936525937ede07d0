"""HardKuma gates: a Kumaraswamy variable, stretched and clipped, so that exact 0 and 1 have probability."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from longdecode.training.roles.gates.gate import FLOOR, STRETCH_HIGH, STRETCH_LOW, ZERO_AT, HeadGates

PARAMETER_MIN, PARAMETER_MAX = 1e-6, 100.0
BETA_MIN = 0.02
"""With a floor: below it every ``a`` gives a gate that is always on."""


class HardKumaGates(HeadGates):
    """``z = clip(s (q - p) + p, 0, 1)`` with ``s = (1 - u^(1/b))^(1/a)``, ``u`` uniform, ``p = -0.1``, ``q = 1.1``.

    ``a`` and ``b`` are learned directly, start at 1 (``s`` uniform) and are kept in [1e-6, 100].

    Source: Bastings et al. 2019 (arXiv 1905.08160), section 3; LycheeDecode (arXiv 2602.04541) for its use on heads.
    """

    kind: ClassVar[str] = "hardkuma"

    def __init__(self, layers: int, kv_heads: int, floor: float = FLOOR):
        super().__init__(layers, kv_heads, floor)
        self.alpha = nn.Parameter(torch.ones(layers, kv_heads))
        self.beta = nn.Parameter(torch.ones(layers, kv_heads))

    def sample(self, noise: Tensor) -> Tensor:
        """See ``HeadGates.sample``; gradients are pathwise and vanish where a draw is clipped."""
        kuma = (1.0 - noise ** (1.0 / self.beta)) ** (1.0 / self.alpha)
        return (kuma * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW).clamp(0.0, 1.0)

    def p_nonzero(self) -> Tensor:
        """``(1 - k0^a)^b`` with ``k0 = 1/12``."""
        return (1.0 - ZERO_AT**self.alpha) ** self.beta

    @torch.no_grad()
    def score(self) -> Tensor:
        """The mean of the Kumaraswamy variable before stretching, ``b B(1 + 1/a, b)``, as the released code ranks by.

        The stretch is symmetric about 0.5, so the comparison with 0.5 is that of the stretched variable's mean.
        """
        a, b = self.alpha.double(), self.beta.double()
        log_beta = torch.lgamma(1 + 1 / a) + torch.lgamma(b) - torch.lgamma(1 + 1 / a + b)
        return (b * log_beta.exp()).to(self.alpha)

    @torch.no_grad()
    def clamp_(self) -> None:
        """Keep both parameters in their range, and ``P(z != 0)`` in [floor, 1 - floor] by moving ``a``."""
        if self.floor:
            self.beta.clamp_(min=BETA_MIN)
            ends = (self.floor, 1.0 - self.floor)
            low, high = (torch.log(-torch.expm1(math.log(end) / self.beta)) / math.log(ZERO_AT) for end in ends)
            self.alpha.clamp_(low, high)
        for parameter in (self.alpha, self.beta):
            parameter.clamp_(PARAMETER_MIN, PARAMETER_MAX)
