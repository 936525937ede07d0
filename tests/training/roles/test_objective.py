"""Objectives: values, gradients, and how their multipliers move."""

from __future__ import annotations

import math

import pytest
import torch

from longdecode.training.roles.gates import DirectGates, HardKumaGates
from longdecode.training.roles.objective import CodeObjective, L1Objective, PaperObjective, hidden_error
from longdecode.training.roles.trainer import trapezoid

CPU = torch.device("cpu")
OPEN = 11 / 12
"""P(z != 0) of a fresh HardKuma gate."""


def test_paper_objective_is_the_lagrangian_and_its_multiplier_ascends_but_never_below_zero() -> None:
    gates = HardKumaGates(3, 4)
    objective = PaperObjective(1, 5, 0.5, torch.tensor(20.0))
    objective.lagrange.fill_(0.3)
    loss = objective.loss(torch.tensor(8.0), gates)
    excess = (8 * OPEN - 5) / 8
    assert loss.constraint.item() == pytest.approx(excess, abs=1e-6)
    assert loss.total.item() == pytest.approx(8.0 / 20.0 + 0.3 * excess, abs=1e-6)
    loss.total.backward()
    assert (gates.alpha.grad[0] == 0).all() and (gates.alpha.grad[1:] != 0).all()
    objective.ascend(loss)
    assert objective.lagrange.item() == pytest.approx(0.3 + 0.5 * excess, abs=1e-6)
    with torch.no_grad():
        gates.alpha.fill_(0.01)
    for _ in range(3):
        objective.ascend(objective.loss(torch.tensor(0.0), gates))
    assert objective.lagrange.item() == 0.0


def test_code_objective_smooths_the_value_keeps_the_gradient_and_only_grows() -> None:
    gates = HardKumaGates(2, 3)
    objective = CodeObjective(0, 0.25, 0.1, CPU)
    first = objective.loss(torch.tensor(1.0), gates)
    assert first.constraint.item() == pytest.approx(OPEN - 0.25, abs=1e-6)
    assert first.total.item() == pytest.approx(1.0 + 2.0 * (OPEN - 0.25), abs=1e-6)
    objective.ascend(first)
    assert objective.lagrange.item() == pytest.approx(2.0 * math.exp(0.1 * (OPEN - 0.25)), rel=1e-6)
    with torch.no_grad():
        gates.alpha.fill_(0.01)
    second = objective.loss(torch.tensor(1.0), gates)  # now below the target: the hinge is 0, its average is not
    assert second.constraint.item() == pytest.approx(0.9 * (OPEN - 0.25), abs=1e-6)
    second.total.backward()
    assert (gates.alpha.grad == 0).all()
    before = objective.lagrange.item()
    objective.ascend(second)
    assert objective.lagrange.item() > before
    with torch.no_grad():
        gates.alpha.fill_(1.0)
    third = objective.loss(torch.tensor(0.0), gates)
    third.total.backward()
    expected = torch.autograd.grad(gates.p_nonzero().mean() * objective.lagrange, gates.alpha)[0]
    torch.testing.assert_close(gates.alpha.grad, expected)
    objective.lagrange.fill_(19.99)
    for _ in range(5):
        objective.ascend(third)
    assert objective.lagrange.item() == 20.0


def test_l1_objective_penalises_the_mean_gate() -> None:
    gates = DirectGates(2, 2)
    loss = L1Objective(1, 0.05, CPU).loss(torch.tensor(0.5), gates)
    assert loss.total.item() == pytest.approx(0.55)
    loss.total.backward()
    torch.testing.assert_close(gates.value.grad, torch.tensor([[0.0, 0.0], [0.025, 0.025]]))


def test_hidden_error_is_the_mean_over_width_and_targets() -> None:
    student, teacher = torch.zeros(1, 2, 4), torch.tensor([[[2.0, 0, 0, 0], [0, 0, 0, 4.0]]])
    assert hidden_error(student, teacher).item() == pytest.approx((4 / 4 + 16 / 4) / 2)


def test_schedule_is_a_trapezoid() -> None:
    factors = [trapezoid(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[10] == pytest.approx(0.55) and factors[-1] == pytest.approx(0.1)
    assert all(factor == 1.0 for factor in factors[20:80]) and max(factors) == 1.0
    assert 0 < trapezoid(0, 1) <= 1.0
