"""Train gates on the distance from the teacher, under a constraint on the number of heads that retrieve."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.training.roles.gated_model import GatedModel
from longdecode.training.roles.gates import HeadGates

ASCENT = 4.0
"""Growth of the multiplier over a training that exceeds the wanted count by itself; found on a model of independent
heads, confirmed on the miniature."""
LAMBDA_START, LAMBDA_MIN, LAMBDA_MAX, LAMBDA_RATE = 2.0, 1e-12, 20.0, 0.001
EMA = 0.9
L1_WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class Loss:
    """One step's loss and its parts, all scalars on the device; ``distill`` is in the objective's own units."""

    total: Tensor
    distill: Tensor
    constraint: Tensor


class Objective(ABC):
    """A loss over gates. ``lagrange`` is the multiplier, a scalar on the device; nothing here waits for the host."""

    lagrange: Tensor

    @staticmethod
    def distance(model: GatedModel, student: Tensor, teacher: Tensor) -> Tensor:
        """Squared error of final hidden states ``[B, T, H]`` averaged over their width and targets; float32 scalar."""
        return (student.float() - teacher.float()).square().mean()

    @abstractmethod
    def loss(self, distill: Tensor, gates: HeadGates) -> Loss:
        """Add the constraint to the distillation loss."""

    def ascend(self, loss: Loss) -> None:  # noqa: B027 (not every objective has a multiplier)
        """Move the multiplier after a step."""


class PaperObjective(Objective):
    """``min over gates, max over lambda >= 0 of L + lambda max(0, E ||z||_0 - N) / n``, ``L`` on logits.

    ``L`` is the squared error of the logits, summed over the vocabulary and averaged over targets and samples, in
    units of ``reference``: a checkpoint's logits have a scale of their own, and with it ``lambda`` and its rate mean
    the same everywhere. ``n`` is the number of gates, which only rescales ``lambda``. Kinds of gates differ in
    ``E ||z||_0`` alone, which for plain numbers is their sum.

    The constraint is a hinge, as in the released code: at or below ``N`` it costs nothing. A multiplier that goes on
    pressing there closes one noisy gate after another, and what has closed stays closed, since no draw of it has a
    gradient; so gates also keep a floor of ``P(z != 0)``, and the count settles where heads change places.

    Args:
        first_layer: layers below it are left out of the constraint (layer 0 always retrieves).
        target: heads that may be on from that layer up.
        rate: of the ascent, per step.
        reference: ``L`` with every gate at 0, a scalar.

    Source: LycheeDecode (arXiv 2602.04541), the training objective; scaling and floor are this project's.
    """

    def __init__(self, first_layer: int, target: int, rate: float, reference: Tensor):
        self.first_layer = first_layer
        self.target = target
        self.rate = rate
        self.reference = reference
        self.lagrange = torch.zeros((), device=reference.device)

    @staticmethod
    def distance(model: GatedModel, student: Tensor, teacher: Tensor) -> Tensor:
        """See the class; the LM head is linear, so that its Gram matrix gives the error without any logits."""
        error = student.float() - teacher.float()
        return ((error @ model.gram) * error).sum(dim=-1).mean()

    def loss(self, distill: Tensor, gates: HeadGates) -> Loss:
        """See the class."""
        on = gates.p_nonzero()[self.first_layer :]
        constraint = torch.relu(on.sum() - self.target) / on.numel()
        return Loss(distill / self.reference + self.lagrange * constraint, distill, constraint)

    def ascend(self, loss: Loss) -> None:
        """One step up the gradient, which is the constraint's value."""
        self.lagrange.add_(self.rate * loss.constraint.detach())


class CodeObjective(Objective):
    """The released training code's objective: hidden states, a one-sided hinge, a multiplier that only grows.

    ``L + lambda c`` with ``L`` the squared error of the final hidden states, averaged over the hidden width and over
    targets, and ``c = relu(mean P(z != 0) - target)`` whose value is replaced by its moving average (0.9) while its
    gradient stays that of the current step; ``lambda`` is multiplied by ``exp(0.001 c)`` up to 20.

    Args:
        target: heads that may be on, as a share of all gates, layer 0's included.

    Source: LycheeDecode's released code (HITsz-TMG/TMGNLP, LycheeDecode/, revision 95c3d2c).
    """

    def __init__(self, target: float, device: torch.device):
        self.target = target
        self.lagrange = torch.full((), LAMBDA_START, device=device)
        self.average: Tensor | None = None

    def loss(self, distill: Tensor, gates: HeadGates) -> Loss:
        """See the class."""
        excess = torch.relu(gates.p_nonzero().mean() - self.target)
        now = excess.detach()
        self.average = now if self.average is None else EMA * self.average + (1 - EMA) * now
        constraint = excess + (self.average - now)
        return Loss(distill + self.lagrange * constraint, distill, constraint)

    def ascend(self, loss: Loss) -> None:
        """Multiply; the constraint is never negative, so the multiplier never falls."""
        growth = torch.exp(LAMBDA_RATE * loss.constraint.detach())
        self.lagrange.mul_(growth).clamp_(LAMBDA_MIN, LAMBDA_MAX)


class L1Objective(Objective):
    """DuoAttention's: ``L + 0.05 mean(z)``, ``L`` the squared error of the final hidden states.

    Source: DuoAttention (arXiv 2410.10819), section 2.2 and its released code.
    """

    def __init__(self, device: torch.device):
        self.lagrange = torch.full((), L1_WEIGHT, device=device)

    def loss(self, distill: Tensor, gates: HeadGates) -> Loss:
        """See the class; of gates without noise the expected count is their sum."""
        constraint = gates.p_nonzero().mean()
        return Loss(distill + self.lagrange * constraint, distill, constraint)
