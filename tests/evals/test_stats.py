"""Statistics against scipy, textbook examples, every pattern written out, and what coverage promises."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, ttest_1samp

from longdecode.evals import stats
from longdecode.evals.stats import Spread

SPREAD = Spread(0.95, 4000, 0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("right", "n"), [(0, 7), (7, 7), (1, 16), (37, 64), (300, 301)])
def test_wilson_equals_scipy(right: int, n: int, confidence: float) -> None:
    expected = binomtest(right, n).proportion_ci(confidence, method="wilson")
    assert stats.wilson_interval(right / n, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_one_task_is_scipys_percentile_bootstrap() -> None:
    gaps = rng(3).normal(size=40)
    found = stats.bootstrap_interval([gaps], SPREAD, rng(7))
    wanted = bootstrap((gaps,), np.mean, n_resamples=4000, method="percentile", rng=rng(8)).confidence_interval
    assert found.value == pytest.approx(gaps.mean())
    width = wanted.high - wanted.low
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=0.1 * width)


def test_tasks_weigh_the_same_and_are_resampled_apart() -> None:
    few, many = np.array([0.0, 1.0, 0.0, 1.0]), rng(0).random(400)
    found = stats.bootstrap_interval([few, many], SPREAD, rng(1))
    assert found.value == pytest.approx((few.mean() + many.mean()) / 2)
    spread = np.hypot(few.std() / 2, many.std() / 20) / 2  # standard error of the mean of two independent means
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(spread, rel=0.15)


def test_one_unit_has_no_bounds_and_units_that_agree_have_a_point() -> None:
    found = stats.bootstrap_interval([np.array([0.3])], SPREAD, rng())
    assert found.value == 0.3 and np.isnan([found.low, found.high]).all()
    assert stats.bootstrap_interval([np.full(5, 0.3)], SPREAD, rng()) == (0.3, 0.3, 0.3)


def test_another_statistic_is_resampled_from_both_sides() -> None:
    ours, theirs = rng(1).normal(4, 0.1, 30), rng(2).normal(2, 0.1, 30)

    def quotient(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(a.mean(axis=axis) / b.mean(axis=axis))

    found = stats.bootstrap_interval([ours, theirs], SPREAD, rng(), quotient)
    relative = np.hypot(0.1 / 4, 0.1 / 2) / np.sqrt(30)
    assert found.value == pytest.approx(ours.mean() / theirs.mean())
    assert (found.high - found.low) / (2 * 1.96 * found.value) == pytest.approx(relative, rel=0.25)


@pytest.mark.parametrize("right", [0, 4, 60, 64])
def test_a_mean_at_the_edge_is_wilsons_over_units(right: int) -> None:
    found = stats.mean_interval([np.array([1.0] * right + [0.0] * (64 - right))], True, SPREAD, rng())
    expected = binomtest(right, 64).proportion_ci(0.95, method="wilson")
    assert found == pytest.approx((right / 64, expected.low, expected.high))


def test_a_mean_off_the_edge_and_a_loss_are_bootstrapped() -> None:
    for scores, bounded in ((np.array([1.0] * 5 + [0.0] * 59), True), (np.array([1.0] * 2 + [0.0] * 62), False)):
        found = stats.mean_interval([scores], bounded, SPREAD, rng(4))
        assert found == stats.bootstrap_interval([scores], SPREAD, rng(4))


@pytest.mark.parametrize(("n", "won", "lost"), [(189, 0, 0), (64, 0, 3), (300, 2, 1)])
def test_the_edge_is_wilsons_limits_of_what_was_won_and_lost(n: int, won: int, lost: int) -> None:
    gaps = np.array([1.0] * won + [-1.0] * lost + [0.0] * (n - won - lost))
    w, x = (binomtest(k, n).proportion_ci(method="wilson") for k in (won, lost))
    value = (won - lost) / n
    found = stats.paired_interval([gaps], True, SPREAD, rng())
    assert found.value == pytest.approx(value)
    assert found.low == pytest.approx(value - np.hypot(won / n - w.low, x.high - lost / n))
    assert found.high == pytest.approx(value + np.hypot(w.high - won / n, lost / n - x.low))


def test_189_equal_answers_are_what_two_points_need() -> None:
    highs = [stats.paired_interval([np.zeros(n)], True, SPREAD, rng()).high for n in (189, 188)]
    assert highs[0] < 0.02 < highs[1]


def test_tasks_of_equal_size_are_pooled_at_the_edge() -> None:
    parts, whole = [np.zeros(100), np.zeros(100)], [np.zeros(200)]
    assert stats.effective_units(parts) == 200 and stats.effective_units([np.zeros(10), np.zeros(1000)]) < 40
    assert stats.paired_interval(parts, True, SPREAD, rng()) == stats.paired_interval(whole, True, SPREAD, rng())


def test_wilson_takes_over_where_few_units_differ_and_scores_have_an_edge() -> None:
    few, enough = (np.array([-1.0] * k + [0.0] * (64 - k)) for k in (3, 5))
    boot = [stats.bootstrap_interval([gaps], SPREAD, rng(5)) for gaps in (few, enough)]
    assert stats.paired_interval([few], True, SPREAD, rng(5)) != boot[0]
    assert stats.paired_interval([few], False, SPREAD, rng(5)) == boot[0]
    assert stats.paired_interval([enough], True, SPREAD, rng(5)) == boot[1]


@pytest.mark.parametrize(("kind", "truth"), [("paired", -0.1), ("mean", 0.9)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(kind: str, truth: float) -> None:
    draw, held, spread = rng(0), 0, Spread(0.95, 400, 0)
    for _ in range(200):
        if kind == "paired":
            gaps = draw.choice([-1.0, 0.0, 1.0], p=[0.15, 0.8, 0.05], size=120)
            found = stats.paired_interval([gaps], True, spread, draw)
        else:
            found = stats.mean_interval([(draw.random(60) < truth).astype(float)], True, spread, draw)
        held += found.low <= truth <= found.high
    assert 178 <= held <= 199


def test_a_small_sample_is_every_pattern_of_signs() -> None:
    gaps = np.array([0.5, -0.1, 0.3, 0.2, 0.4])
    flipped = [abs(np.dot(signs, gaps)) for signs in product((1, -1), repeat=5)]
    wanted = np.mean([total >= abs(gaps.sum()) - 1e-12 for total in flipped])
    assert stats.sign_flip_p([gaps], 9999, rng()) == pytest.approx(wanted)


def test_differences_that_cancel_show_nothing_whatever_the_rounding_of_their_sum() -> None:
    gaps = np.array([0.2] * 18 + [0.8 - 1] * 13 + [-0.4, -0.6])
    assert 0 < abs(gaps.sum()) < 1e-12 and stats.sign_flip_p([gaps], 9999, rng()) == 1.0


def test_equal_steps_are_the_exact_sign_test() -> None:
    gaps = np.array([1.0] * 9 + [-1.0] * 2 + [0.0] * 50)
    assert stats.sign_flip_p([gaps], 9999, rng()) == pytest.approx(binomtest(9, 11).pvalue)


def test_units_that_agree_and_their_number_change_nothing() -> None:
    gaps = np.array([0.5, 0.1, 0.3, 0.2])
    padded = np.concatenate([gaps, np.zeros(500)])
    assert stats.sign_flip_p([gaps], 999, rng()) == stats.sign_flip_p([padded], 999, rng()) == 2 / 16


def test_nothing_that_differs_and_one_unit_show_nothing_and_no_p_value_is_zero() -> None:
    assert stats.sign_flip_p([np.zeros(9)], 99, rng()) == stats.sign_flip_p([np.array([0.7])], 99, rng()) == 1.0
    assert stats.sign_flip_p([np.ones(60)], 999, rng()) >= 1 / 1000


def test_p_value_holds_its_level() -> None:
    draw = rng(2)
    null = [stats.sign_flip_p([draw.normal(size=30)], 400, draw) for _ in range(300)]
    assert 0.01 <= np.mean(np.array(null) <= 0.05) <= 0.10


def test_holm_on_a_textbook_family() -> None:
    """p = .01, .04, .03, .005: the adjusted values R's p.adjust(method='holm') prints."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


@pytest.mark.parametrize(
    ("low", "high", "p", "higher", "verdict"),
    [
        (-1.9, 0.5, 0.3, True, "within"),
        (-2.1, 0.5, 0.3, True, "cannot tell"),
        (-5.0, -2.1, 0.001, True, "worse"),
        (-5.0, -0.1, 0.04, True, "worse"),
        (-5.0, -0.1, 0.06, True, "cannot tell"),  # the interval excludes 0, but not after Holm
        (-0.7, -0.2, 0.001, True, "within"),  # sure and small
        (3.0, 9.0, 0.001, True, "within"),  # a gain loses nothing
        (0.5, 1.9, 0.001, False, "within"),  # of a loss, higher is worse
        (2.5, 9.0, 0.001, False, "worse"),
        (-9.0, -2.5, 0.001, False, "within"),
        (math.nan, math.nan, 1.0, True, "cannot tell"),
    ],
)
def test_the_whole_interval_of_the_loss_decides(low: float, high: float, p: float, higher: bool, verdict: str) -> None:
    assert stats.judge(low, high, p, 2.0, higher, 64, 0.05) == verdict


def test_few_units_and_units_without_a_margin_decide_nothing() -> None:
    assert stats.judge(0.0, 0.0, 1.0, 2.0, True, 9, 0.05) == "cannot tell"
    assert stats.judge(0.0, 0.0, 1.0, None, True, 90, 0.05) == "cannot tell"
    assert stats.MARGINS == {"points": 2.0, "nats/byte": 0.02, "nats/token": 0.02}


def test_the_front_is_what_nothing_beats_in_both() -> None:
    """Three points in two draws: fast and lossy, slow and sure, and one that another beats in the first draw alone."""
    losses = np.array([[5.0, 5.0], [0.0, 0.0], [6.0, 4.0]])
    assert stats.front_shares(losses, np.array([[3.0, 3.0], [1.0, 1.0], [2.0, 2.0]])).tolist() == [1.0, 1.0, 0.5]
    alike = np.ones((2, 4))
    assert stats.front_shares(alike, alike).tolist() == [1.0, 1.0], "no point beats its equal"


def test_ranks_are_apart_where_a_difference_is_proven() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 4000))
    best, worst = stats.rank_ranges(np.array([[0.0], [2.5], [9.0]]) + noise, 0.05)  # 1.8 standard errors, then 4.6
    assert (best.tolist(), worst.tolist()) == ([1, 1, 3], [2, 2, 3])
    assert np.array(stats.rank_ranges(np.ones((2, 9)), 0.05)).tolist() == [[1, 1], [2, 2]]


def test_generator_depends_on_the_cell_alone() -> None:
    first = stats.generator(0, "quest", 0.1).random(4)
    assert np.array_equal(first, stats.generator(0, "quest", 0.1).random(4))
    assert not np.array_equal(first, stats.generator(0, "quest", 0.2).random(4))
    assert not np.array_equal(stats.generator("ab", "c").random(4), stats.generator("a", "bc").random(4))


def test_a_few_texts_have_students_interval() -> None:
    values = np.array([1.51, 1.65, 1.68])
    expected = ttest_1samp(values, 0)
    found, p = stats.student_interval(values.mean(), [values], 0.95)
    assert (found.low, found.high, p) == pytest.approx((*expected.confidence_interval(0.95), expected.pvalue))
    assert np.isnan(stats.student_interval(1.5, [values[:1]], 0.95)[0].low)
