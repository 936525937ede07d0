"""Gates: closed forms against Monte Carlo, integration and the published check values; gradients; ranges."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate

from longdecode.training.roles.gates import GATES, DirectGates, HardConcreteGates, HardKumaGates, HeadGates
from longdecode.training.roles.gates.gate import FLOOR

CHECK_VALUES = (
    # alpha, beta, mean before stretching, P(z != 0): shared notes on LycheeDecode, section 2.1.
    (1.0, 1.0, 0.5000, 0.9167), (2.0, 2.0, 0.5333, 0.9862), (0.5, 0.5, 0.5333, 0.8434), (0.3, 3.0, 0.0410, 0.1451),
    (3.0, 0.3, 0.8927, 0.9998), (0.5, 2.0, 0.1667, 0.5060),
)  # fmt: skip


def kuma(alpha: list[float], beta: list[float]) -> HardKumaGates:
    gates = HardKumaGates(1, len(alpha))
    with torch.no_grad():
        gates.alpha.copy_(torch.tensor([alpha]))
        gates.beta.copy_(torch.tensor([beta]))
    return gates


def concrete(log_alpha: list[float]) -> HardConcreteGates:
    gates = HardConcreteGates(1, len(log_alpha))
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor([log_alpha]))
    return gates


def test_hardkuma_has_the_check_values() -> None:
    columns = list(zip(*CHECK_VALUES, strict=True))
    gates = kuma(list(columns[0]), list(columns[1]))
    for found, expected in zip((gates.score(), gates.p_nonzero()), columns[2:], strict=True):
        torch.testing.assert_close(found[0], torch.tensor(expected), atol=6e-5, rtol=0)


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.3), (1.7, 0.4), (40.0, 3.0), (0.9, 60.0)])
def test_hardkumas_score_is_the_mean_before_stretching(alpha: float, beta: float) -> None:
    mean = integrate.quad(lambda t: (1 - t**alpha) ** beta, 0, 1, limit=200)[0]
    assert kuma([alpha], [beta]).score().item() == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize(
    "gates", [kuma([0.4, 1.0, 2.5], [1.3, 1.0, 0.6]), concrete([-2.0, 0.3, 1.5])], ids=lambda gates: gates.kind
)
def test_samples_follow_the_closed_forms(gates: HeadGates, seed: int) -> None:
    # Noise over the whole of (0, 1): the training range (0.001, 0.999) shifts every probability by up to 0.001.
    noise = torch.rand(200_000, 1, 3, generator=torch.Generator().manual_seed(seed)).clamp(1e-6, 1 - 1e-6)
    draws = gates.sample(noise).detach()
    assert draws.min() >= 0 and draws.max() <= 1
    torch.testing.assert_close((draws != 0).float().mean(0), gates.p_nonzero().detach(), atol=0.006, rtol=0)


def test_hard_concrete_starts_at_one_half_and_has_the_published_closed_form() -> None:
    assert (HardConcreteGates(2, 2).score() == 0.5).all()
    expected = 1 / (1 + math.exp(-(0.7 - 2 / 3 * math.log(0.1 / 1.1))))
    assert concrete([0.7]).p_nonzero().item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", sorted(GATES))
def test_gradients_are_finite_at_the_ends_of_the_range(kind: str, seed: int) -> None:
    gates = GATES[kind](2, 3)
    with torch.no_grad():
        for parameter in gates.parameters():
            parameter.copy_(torch.tensor([[1e-9, 1e-6, 0.5], [1.0, 99.0, 1e5]]))
        gates.clamp_()
    noise = gates.uniform(500, torch.Generator().manual_seed(seed))
    assert noise.shape == (500, 2, 3) and noise.min() >= 0.001 and noise.max() <= 0.999
    total = gates.sample(noise).sum() + gates.p_nonzero().sum()
    assert torch.isfinite(total)
    total.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in gates.parameters())


@pytest.mark.parametrize("kind", ["hard_concrete", "hardkuma"])
def test_a_gate_keeps_draws_of_both_kinds_unless_it_is_to_have_none(kind: str) -> None:
    """A gate without draws on one side of its threshold has no gradient, and would stay closed, or open, for good."""
    for floor in (FLOOR, 0.0):
        gates = GATES[kind](3, 3, floor)
        with torch.no_grad():
            if isinstance(gates, HardKumaGates):
                gates.alpha.copy_(torch.tensor([1e-9, 0.7, 99.0]).repeat(3, 1))
                gates.beta.copy_(torch.tensor([99.0, 0.5, 1e-9])[:, None].repeat(1, 3))
            else:
                gates.log_alpha.copy_(torch.tensor([-50.0, 0.0, 50.0]).repeat(3, 1))
        gates.clamp_()
        on = gates.p_nonzero()
        kept = (on >= FLOOR * 0.99) & (on <= 1 - FLOOR * 0.99)
        assert kept.all() == bool(floor)


def test_direct_gates_start_at_one_and_stay_in_the_unit_interval() -> None:
    gates = DirectGates(1, 3)
    assert (gates.score() == 1).all()
    with torch.no_grad():
        gates.value.copy_(torch.tensor([[-0.5, 0.25, 1.5]]))
    gates.clamp_()
    assert gates.score().tolist() == gates.p_nonzero().tolist() == [[0.0, 0.25, 1.0]]
