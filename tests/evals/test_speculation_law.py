"""Total variation of the rules of acceptance: the engine's own draws against what probability says."""

from __future__ import annotations

import pytest
import torch

from longdecode.engine.sampling import Sampling
from longdecode.evals.speculation_law import total_variation

LOGITS = 1.5 * torch.randn(24, 12, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("paths", [27, 47])
def test_the_faithful_rule_is_far_from_the_target_and_the_exact_one_is_not(paths: int) -> None:
    sampling = Sampling(0.8, min_p=0.05)
    law = (LOGITS.double() / 0.8).softmax(1)
    best = law.amax(1, keepdim=True)
    chance = best[:, 0] / (law * (law / best >= 0.05)).sum(1)
    want = float((1 - (1 - chance) ** paths - chance).mean())
    faithful = total_variation(LOGITS, paths, "faithful", sampling=sampling, draws=300)
    assert faithful.expected.value == pytest.approx(want, abs=1e-6) and want > 0.3
    assert faithful.measured.value == pytest.approx(want, abs=0.02)
    assert faithful.measured.low < faithful.measured.high
    exact = total_variation(LOGITS, paths, "exact", sampling=sampling, draws=300)
    assert exact.expected.value == 0 and exact.measured.low < 0 and exact.measured.high > 0
    assert abs(exact.measured.value) < 0.02


def test_one_path_is_exact_and_greedy_draws_are_too() -> None:
    one = total_variation(LOGITS[:6], 1, "faithful", sampling=Sampling(1.0), draws=400)
    assert one.expected.value == pytest.approx(0, abs=1e-12) and abs(one.measured.value) < 0.04
    greedy = total_variation(LOGITS[:6], 27, "faithful", sampling=Sampling(), draws=2)
    assert greedy.measured.value == 0
