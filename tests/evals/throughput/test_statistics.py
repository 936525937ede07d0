"""Statistics against numbers worked out by hand or by scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from longdecode.evals.throughput import statistics
from longdecode.evals.throughput.compare import geometric_ratio


def test_spread_is_median_and_percentiles() -> None:
    found = statistics.spread([float(value) for value in range(1, 22)])
    assert (found.value, found.low, found.high) == (11.0, 2.0, 20.0)
    assert math.isnan(statistics.spread([]).value)


def test_a_ratio_without_spread_is_a_point() -> None:
    found = statistics.median_ratio([2.0] * 5, 0.95, 200, ("x",))
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_the_ratio_interval_covers_a_known_median(seed: int) -> None:
    rng = np.random.default_rng(seed)
    covered = 0
    for trial in range(200):
        ratios = np.exp(rng.normal(math.log(1.5), 0.1, size=15))
        found = statistics.median_ratio(ratios.tolist(), 0.95, 400, (trial,))
        covered += found.low <= 1.5 <= found.high
    assert covered >= 170  # 95 % nominal; a bootstrap of a median over 15 values comes out a little short


def test_the_draw_depends_on_the_cell_alone() -> None:
    ratios = [1.0, 1.2, 1.1, 1.4, 0.9]
    first = statistics.median_ratio(ratios, 0.9, 300, ("a", 1))
    assert first == statistics.median_ratio(ratios, 0.9, 300, ("a", 1))


def test_geometric_ratio_by_hand() -> None:
    found = geometric_ratio(np.array([2.0, 8.0]))
    half = student.ppf(0.975, 1) * math.log(2)  # the logarithms differ by log 4; their standard error is log 2
    assert found.value == pytest.approx(4.0)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((math.log(4) - half, math.log(4) + half))
    assert math.isnan(geometric_ratio(np.array([1.5])).low) and math.isnan(geometric_ratio(np.array([])).value)
