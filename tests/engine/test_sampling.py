"""Sampling: the noise, the distribution it draws from, and the filters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from longdecode.engine.errors import ConfigError
from longdecode.engine.sampling import Sampling, filtered_logits
from longdecode.kernels.draw import gumbel_noise

MASK = (1 << 64) - 1


def splitmix_finalizer(z: int) -> int:
    """SplitMix64's output function in unbounded integers (Steele, Lea, Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def reference_noise(seed: int, position: int, index: int) -> float:
    golden = 0x9E3779B97F4A7C15
    row = splitmix_finalizer((splitmix_finalizer((seed * golden + 1) & MASK) + position * golden) & MASK)
    bits = splitmix_finalizer((row + (index + 1) * golden) & MASK) >> 11
    return -math.log(-math.log((bits + 0.5) / 2**53))


def test_noise_is_the_hash_it_claims(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seeds = [0, 1, *rng.integers(0, 2**62, 3).tolist()]
    positions = [0, 7, *rng.integers(0, 2**31, 3).tolist()]
    noise = gumbel_noise(torch.tensor(seeds), torch.tensor(positions), 11)
    for row, (s, p) in enumerate(zip(seeds, positions, strict=True)):
        for index in range(11):
            assert noise[row, index].item() == pytest.approx(reference_noise(s, p, index), rel=1e-12)


def test_noise_is_gumbel_and_independent(seed: int) -> None:
    """Over many positions of one seed and over many seeds at one position; neighbours must not be correlated."""
    count = 4000
    along = gumbel_noise(torch.full((count,), seed), torch.arange(count), 3)
    across = gumbel_noise(torch.arange(seed, seed + count), torch.full((count,), 5), 3)
    for noise in (along.numpy(), across.numpy()):
        assert stats.kstest(noise.ravel(), "gumbel_r").pvalue > 1e-6
        uniform = np.exp(-np.exp(-noise))
        for left, right in ((uniform[:, 0], uniform[:, 1]), (uniform[:-1, 0], uniform[1:, 0])):
            assert abs(np.corrcoef(left, right)[0, 1]) < 5 / math.sqrt(count)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float, seed: int) -> None:
    draws, vocab = 20_000, 9
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed))
    keys = torch.full((draws,), seed), torch.arange(draws)
    tokens = Sampling(temperature).best(logits.expand(draws, vocab), 1, *keys, None)[:, 0]
    expected = torch.softmax(logits.double() / temperature, dim=0).numpy() * draws
    assert stats.chisquare(torch.bincount(tokens, minlength=vocab).numpy(), expected).pvalue > 1e-6


def allowed_tokens(logits: list[float], top_p: float, min_p: float) -> set[int]:
    """The two definitions, spelled out in Python floats."""
    largest = max(logits)
    weights = [math.exp(x - largest) for x in logits]
    total = math.fsum(weights)
    nucleus, mass = set(), 0.0
    for index in sorted(range(len(logits)), key=lambda i: (-logits[i], i)):
        if mass >= top_p:
            break
        nucleus.add(index)
        mass += weights[index] / total
    return {i for i in nucleus if weights[i] >= min_p}


@pytest.mark.parametrize(("top_p", "min_p"), [(0.3, 0.0), (0.9, 0.0), (1e-6, 0.0), (1.0, 0.1), (1.0, 1.0), (0.8, 0.05)])
def test_filters_keep_what_their_definitions_keep(top_p: float, min_p: float, seed: int) -> None:
    logits = 2 * torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    kept = filtered_logits(logits, top_p, min_p)
    for row, values in enumerate(logits.tolist()):
        allowed = allowed_tokens(values, top_p, min_p)
        assert set(torch.isfinite(kept[row]).nonzero()[:, 0].tolist()) == allowed
        assert all(kept[row, i] == logits[row, i] for i in allowed)


@pytest.mark.parametrize("arguments", [(-0.1,), (math.nan,), (math.inf,), (1, 0), (1, 1.01), (1, 1, -0.1), (1, 1, 1.5)])
def test_values_out_of_range_are_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Sampling(*arguments)


@pytest.mark.parametrize("rule", [{"min_p": 0.5}, {"eta": 0.9}])
def test_a_floor_of_tokens_stays_whatever_its_probability(rule: dict[str, float], seed: int) -> None:
    logits = 5 * torch.randn(6, 30, generator=torch.Generator().manual_seed(seed))
    strict = filtered_logits(logits, 1.0, rule.get("min_p", 0.0), rule.get("eta", 0.0))
    kept = filtered_logits(logits, 1.0, rule.get("min_p", 0.0), rule.get("eta", 0.0), 7)
    for row in range(6):
        best = set(logits[row].topk(7).indices.tolist())
        allowed = {i for i, value in enumerate(strict[row].tolist()) if value > -torch.inf}
        assert {i for i, value in enumerate(kept[row].tolist()) if value > -torch.inf} == best | allowed
        assert len(allowed) < 7
