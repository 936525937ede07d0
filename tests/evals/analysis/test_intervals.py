"""Intervals against scipy's bootstrap, Wilson's formula worked out by scipy's binomtest, and what coverage promises."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap

from longdecode.evals.analysis.intervals import paired_interval, paired_wilson, percentile_bootstrap


def test_one_task_is_scipys_percentile_bootstrap() -> None:
    gaps = np.random.default_rng(3).normal(size=40)
    found = percentile_bootstrap([gaps], 0.95, 4000, np.random.default_rng(7))
    wanted = bootstrap((gaps,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(8))
    assert found.value == pytest.approx(gaps.mean())
    width = wanted.confidence_interval.high - wanted.confidence_interval.low
    assert found.low == pytest.approx(wanted.confidence_interval.low, abs=0.1 * width)
    assert found.high == pytest.approx(wanted.confidence_interval.high, abs=0.1 * width)


def test_tasks_weigh_the_same_and_are_resampled_apart() -> None:
    few, many = np.array([0.0, 1.0, 0.0, 1.0]), np.random.default_rng(0).random(400)
    found = percentile_bootstrap([few, many], 0.95, 4000, np.random.default_rng(1))
    assert found.value == pytest.approx((few.mean() + many.mean()) / 2)
    spread = np.hypot(few.std() / 2, many.std() / 20) / 2  # standard error of the mean of two independent means
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(spread, rel=0.15)


def test_one_unit_has_no_bounds() -> None:
    found = percentile_bootstrap([np.array([0.3])], 0.95, 200, np.random.default_rng(0))
    assert (found.value, found.kind) == (0.3, "none") and np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize(("n", "won", "lost"), [(189, 0, 0), (64, 0, 3), (300, 2, 1)])
def test_the_edge_is_wilsons_limits_of_what_was_won_and_lost(n: int, won: int, lost: int) -> None:
    gaps = np.array([1.0] * won + [-1.0] * lost + [0.0] * (n - won - lost))
    w, x = (binomtest(k, n).proportion_ci(method="wilson") for k in (won, lost))
    value = (won - lost) / n
    found = paired_wilson([gaps], 0.95)
    assert found.value == pytest.approx(value)
    assert found.low == pytest.approx(value - np.hypot(won / n - w.low, x.high - lost / n))
    assert found.high == pytest.approx(value + np.hypot(w.high - won / n, lost / n - x.low))


def test_189_equal_answers_are_what_two_points_need() -> None:
    assert paired_wilson([np.zeros(189)], 0.95).high < 0.02 < paired_wilson([np.zeros(188)], 0.95).high


def test_tasks_of_equal_size_are_pooled_at_the_edge() -> None:
    parts = [np.zeros(100), np.zeros(100)]
    assert paired_wilson(parts, 0.95).high == pytest.approx(paired_wilson([np.zeros(200)], 0.95).high)


def test_wilson_takes_over_where_few_units_differ_and_scores_have_an_edge() -> None:
    gaps = np.array([-1.0] * 3 + [0.0] * 61)
    rng = np.random.default_rng(0)
    assert paired_interval([gaps], True, 0.95, 500, rng).kind == "wilson"
    assert paired_interval([gaps], False, 0.95, 500, rng).kind == "bootstrap"
    assert paired_interval([np.array([-1.0] * 5 + [0.0] * 59)], True, 0.95, 500, rng).kind == "bootstrap"


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        gaps = rng.choice([-1.0, 0.0, 1.0], p=[0.15, 0.8, 0.05], size=120)
        found = paired_interval([gaps], True, 0.95, 400, rng)
        held += found.low <= -0.1 <= found.high
    assert 180 <= held <= 199
