"""Gates: closed forms against Monte Carlo, scipy and the published check values; gradients; ranges."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate
from scipy.special import beta as beta_function

from longdecode.training.roles.gates import GATES, DirectGates, HardConcreteGates, HardKumaGates, HeadGates

CHECK_VALUES = (
    # alpha, beta, mean before stretching, P(z != 0), P(z = 1), E[z]: shared notes on LycheeDecode, section 2.1.
    (1.0, 1.0, 0.5000, 0.9167, 0.0833, 0.5000),
    (2.0, 2.0, 0.5333, 0.9862, 0.0255, 0.5396),
    (0.5, 0.5, 0.5333, 0.8434, 0.2063, 0.5365),
    (0.3, 3.0, 0.0410, 0.1451, 0.0000, 0.0221),
    (3.0, 0.3, 0.8927, 0.9998, 0.6432, 0.9213),
    (0.5, 2.0, 0.1667, 0.5060, 0.0018, 0.1343),
)


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
    for found, expected in zip(
        (gates.score(), gates.p_nonzero(), gates.p_one(), gates.mean()), columns[2:], strict=True
    ):
        torch.testing.assert_close(found[0], torch.tensor(expected), atol=6e-5, rtol=0)


@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.3), (1.7, 0.4), (40.0, 3.0), (0.9, 60.0)])
def test_hardkuma_equals_numerical_integration(alpha: float, beta: float) -> None:
    gates = kuma([alpha], [beta])

    def survival(at: float) -> float:
        return (1 - at**alpha) ** beta

    stretched = integrate.quad(lambda t: survival((t + 0.1) / 1.2), 0, 1, limit=200)[0]
    assert gates.mean().item() == pytest.approx(stretched, abs=1e-5)
    assert gates.score().item() == pytest.approx(beta * beta_function(1 + 1 / alpha, beta), rel=1e-4)
    assert gates.p_zero().item() == pytest.approx(1 - survival(1 / 12), abs=1e-5)
    assert gates.p_one().item() == pytest.approx(survival(11 / 12), abs=1e-5)


@pytest.mark.parametrize(
    "gates",
    [kuma([0.4, 1.0, 2.5], [1.3, 1.0, 0.6]), concrete([-2.0, 0.3, 1.5])],
    ids=lambda gates: gates.kind,
)
def test_samples_follow_the_closed_forms(gates: HeadGates, seed: int) -> None:
    # Noise over the whole of (0, 1): the training range (0.001, 0.999) shifts every probability by up to 0.001.
    noise = torch.rand(200_000, 1, 3, generator=torch.Generator().manual_seed(seed)).clamp(1e-6, 1 - 1e-6)
    draws = gates.sample(noise).detach()
    assert draws.min() >= 0 and draws.max() <= 1
    for found, expected in (
        ((draws == 0).float().mean(0), gates.p_zero()),
        ((draws != 0).float().mean(0), gates.p_nonzero()),
        ((draws == 1).float().mean(0), gates.p_one()),
        (draws.mean(0), gates.mean()),
    ):
        torch.testing.assert_close(found, expected.detach(), atol=0.006, rtol=0)


def test_hard_concrete_starts_symmetric_and_equals_integration() -> None:
    start = HardConcreteGates(2, 2)
    assert torch.allclose(start.mean(), torch.full((2, 2), 0.5)) and torch.allclose(start.p_zero(), start.p_one())
    gates = concrete([0.7])

    def above(t: float) -> float:
        at = (t + 0.1) / 1.2
        return 1 / (1 + math.exp(-(0.7 - 2 / 3 * math.log(at / (1 - at)))))

    assert gates.mean().item() == pytest.approx(integrate.quad(above, 0, 1)[0], abs=1e-6)
    assert gates.p_nonzero().item() == pytest.approx(1 / (1 + math.exp(-(0.7 - 2 / 3 * math.log(0.1 / 1.1)))), abs=1e-6)


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


def test_direct_gates_start_at_one_and_stay_in_the_unit_interval() -> None:
    gates = DirectGates(1, 3)
    assert (gates.score() == 1).all()
    with torch.no_grad():
        gates.value.copy_(torch.tensor([[-0.5, 0.25, 1.5]]))
    gates.clamp_()
    assert gates.mean().tolist() == [[0.0, 0.25, 1.0]]
    assert gates.p_zero().tolist() == [[1, 0, 0]] and gates.p_one().tolist() == [[0, 0, 1]]
