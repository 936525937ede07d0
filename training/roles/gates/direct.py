"""Direct optimisation: the gate is the parameter, as in DuoAttention."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from longdecode.training.roles.gates.gate import HeadGates


class DirectGates(HeadGates):
    """``z = x``, learned directly, started at 1 and kept in [0, 1]; no noise, and nothing pushes it to the ends.

    Source: DuoAttention (arXiv 2410.10819), section 2.2.
    """

    kind: ClassVar[str] = "direct"

    def __init__(self, layers: int, kv_heads: int, floor: float = 0.0):
        super().__init__(layers, kv_heads, 0.0)  # its gradient does not depend on where it stands
        self.value = nn.Parameter(torch.ones(layers, kv_heads))

    def sample(self, noise: Tensor) -> Tensor:
        """The gates themselves, the same for every draw."""
        return self.value.expand(noise.shape)

    def p_nonzero(self) -> Tensor:
        """The gate itself, the relaxation of "not 0" that has a gradient."""
        return self.value

    @torch.no_grad()
    def score(self) -> Tensor:
        """The gates."""
        return self.value.clone()

    @torch.no_grad()
    def clamp_(self) -> None:
        """Keep the gates in [0, 1]."""
        self.value.clamp_(0.0, 1.0)
