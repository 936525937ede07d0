"""HardKuma gates: a Kumaraswamy variable, stretched and clipped, so that exact 0 and 1 have probability."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from longdecode.training.roles.gates.gate import ONE_AT, STRETCH_HIGH, STRETCH_LOW, ZERO_AT, HeadGates

PARAMETER_MIN, PARAMETER_MAX = 1e-6, 100.0


class HardKumaGates(HeadGates):
    """``z = clip(s (q - p) + p, 0, 1)`` with ``s = (1 - u^(1/b))^(1/a)``, ``u`` uniform, ``p = -0.1``, ``q = 1.1``.

    ``a`` and ``b`` are learned directly, start at 1 (``s`` uniform) and are kept in [1e-6, 100].

    Source: Bastings et al. 2019 (arXiv 1905.08160), section 3; LycheeDecode (arXiv 2602.04541) for its use on heads.
    """

    kind: ClassVar[str] = "hardkuma"

    def __init__(self, layers: int, kv_heads: int):
        super().__init__(layers, kv_heads)
        self.alpha = nn.Parameter(torch.ones(layers, kv_heads))
        self.beta = nn.Parameter(torch.ones(layers, kv_heads))

    def sample(self, noise: Tensor) -> Tensor:
        """See ``HeadGates.sample``; gradients are pathwise and vanish where a draw is clipped."""
        kuma = (1.0 - noise ** (1.0 / self.beta)) ** (1.0 / self.alpha)
        return (kuma * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW).clamp(0.0, 1.0)

    def p_zero(self) -> Tensor:
        """``1 - (1 - k0^a)^b`` with ``k0 = 1/12``."""
        return 1.0 - self.p_nonzero()

    def p_nonzero(self) -> Tensor:
        """``(1 - k0^a)^b``."""
        return _survival(ZERO_AT, self.alpha, self.beta)

    def p_one(self) -> Tensor:
        """``(1 - k1^a)^b`` with ``k1 = 11/12``."""
        return _survival(ONE_AT, self.alpha, self.beta)

    @torch.no_grad()
    def mean(self) -> Tensor:
        """``E[z] = (q - p)/a (B(k1^a; 1/a, b + 1) - B(k0^a; 1/a, b + 1))``, with the incomplete beta function.

        It is the integral of ``P(z > t)`` over ``t`` in [0, 1].
        """
        import numpy as np
        from scipy.special import betainc, betaln  # torch has no incomplete beta function

        a, b = (parameter.double().cpu().numpy() for parameter in (self.alpha, self.beta))
        scale = (STRETCH_HIGH - STRETCH_LOW) / a
        complete = betaln(1 / a, b + 1)
        share = betainc(1 / a, b + 1, ONE_AT**a) - betainc(1 / a, b + 1, ZERO_AT**a)
        return torch.as_tensor(scale * np.exp(complete) * share).to(self.alpha)

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
        """Keep both parameters in [1e-6, 100]."""
        self.alpha.clamp_(PARAMETER_MIN, PARAMETER_MAX)
        self.beta.clamp_(PARAMETER_MIN, PARAMETER_MAX)


def _survival(at: float, alpha: Tensor, beta: Tensor) -> Tensor:
    """``P(s > at)`` of a Kumaraswamy variable."""
    return (1.0 - at**alpha) ** beta
