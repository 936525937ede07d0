"""Objectives: values, gradients, and how their multipliers move."""

from __future__ import annotations

import math

import pytest
import torch

from longdecode.training.roles.gated_model import GatedModel
from longdecode.training.roles.gates import GATES, DirectGates, HardKumaGates
from longdecode.training.roles.objective import CodeObjective, L1Objective, PaperObjective
from longdecode.training.roles.token_sets import SparseBranch
from longdecode.training.roles.trainer import trapezoid

CPU = torch.device("cpu")
OPEN = 11 / 12
"""P(z != 0) of a fresh HardKuma gate."""


@pytest.mark.parametrize("kind", sorted(GATES))
def test_paper_objective_presses_above_the_wanted_count_alone_and_only_its_gates_differ(kind: str) -> None:
    gates = GATES[kind](3, 4)
    objective = PaperObjective(1, 5, 0.5, torch.tensor(20.0))
    objective.lagrange.fill_(0.3)
    loss = objective.loss(torch.tensor(8.0), gates)
    excess = (gates.p_nonzero()[1:].sum().item() - 5) / 8
    assert excess > 0.2 and loss.constraint.item() == pytest.approx(excess, abs=1e-6)
    assert loss.total.item() == pytest.approx(8.0 / 20.0 + 0.3 * excess, abs=1e-6)
    loss.total.backward()
    for parameter in gates.parameters():
        (expected,) = torch.autograd.grad(0.3 * gates.p_nonzero()[1:].mean(), parameter)
        torch.testing.assert_close(parameter.grad, expected)
        assert (parameter.grad[0] == 0).all() and (parameter.grad[1:] != 0).all()
    objective.ascend(loss)
    assert objective.lagrange.item() == pytest.approx(0.3 + 0.5 * excess, abs=1e-6)
    # At or below the count nothing presses, and the multiplier stays.
    below = PaperObjective(1, 8, 0.5, torch.tensor(20.0))
    below.lagrange.fill_(0.3)
    loss = below.loss(torch.tensor(8.0), gates)
    for gradient in torch.autograd.grad(loss.total, list(gates.parameters())):
        assert (gradient == 0).all()
    below.ascend(loss)
    assert loss.total.item() == pytest.approx(0.4) and below.lagrange.item() == pytest.approx(0.3)


def test_code_objective_smooths_the_value_keeps_the_gradient_and_only_grows() -> None:
    gates, objective = HardKumaGates(2, 3), CodeObjective(0.25, CPU)
    first = objective.loss(torch.tensor(1.0), gates)
    assert first.constraint.item() == pytest.approx(OPEN - 0.25, abs=1e-6)
    assert first.total.item() == pytest.approx(1.0 + 2.0 * (OPEN - 0.25), abs=1e-6)
    objective.ascend(first)
    assert objective.lagrange.item() == pytest.approx(2.0 * math.exp(0.001 * (OPEN - 0.25)), rel=1e-6)
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
    for _ in range(9):
        objective.ascend(third)
    assert objective.lagrange.item() == 20.0


def test_l1_objective_penalises_the_mean_gate() -> None:
    gates = DirectGates(2, 2)
    loss = L1Objective(CPU).loss(torch.tensor(0.5), gates)
    assert loss.total.item() == pytest.approx(0.55)
    loss.total.backward()
    torch.testing.assert_close(gates.value.grad, torch.full((2, 2), 0.0125))


def test_distances_are_those_of_hidden_states_and_of_logits(rows, seed: int) -> None:
    model = GatedModel(rows("qwen2").decoder, SparseBranch())
    student, teacher = torch.zeros(1, 2, 4), torch.tensor([[[2.0, 0, 0, 0], [0, 0, 0, 4.0]]])
    assert L1Objective(CPU).distance(model, student, teacher).item() == pytest.approx((4 / 4 + 16 / 4) / 2)
    width = model.decoder.config.hidden_size
    student, teacher = torch.randn(2, 2, 5, width, generator=torch.Generator().manual_seed(seed))
    logits = model.decoder.logits(student) - model.decoder.logits(teacher)
    found = PaperObjective(1, 5, 0.5, torch.ones(())).distance(model, student, teacher)
    assert found.item() == pytest.approx(logits.square().sum(-1).mean().item(), rel=1e-4)


def test_schedule_is_a_trapezoid() -> None:
    factors = [trapezoid(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[10] == pytest.approx(0.55) and factors[-1] == pytest.approx(0.1)
    assert all(factor == 1.0 for factor in factors[20:80]) and max(factors) == 1.0 and 0 < trapezoid(0, 1) <= 1.0
