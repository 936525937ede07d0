"""Statistics against scipy, textbook examples and simulated truth."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, permutation_test, ttest_1samp, ttest_rel

from longdecode.evals import stats


def scores(values: object, clusters: object = None, trials: object = None) -> stats.Scores:
    values = np.asarray(values, dtype=np.float64)
    clusters = np.arange(len(values)) if clusters is None else np.asarray(clusters)
    return stats.Scores(values, clusters, None if trials is None else np.broadcast_to(trials, values.shape).copy())


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("right", "n"), [(0, 7), (7, 7), (1, 16), (37, 64), (300, 301)])
def test_wilson_equals_scipy(right: int, n: int, confidence: float) -> None:
    expected = binomtest(right, n).proportion_ci(confidence, method="wilson")
    assert stats.wilson_interval(right / n, n, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bca_interval_agrees_with_scipy_on_skewed_data() -> None:
    rng = np.random.default_rng(time.time_ns())
    values = rng.lognormal(0, 1, size=40)
    ours = stats.mean_estimate(scores(values), 0.9, 40_000, rng)
    theirs = bootstrap((values,), np.mean, confidence_level=0.9, n_resamples=40_000, method="BCa", rng=rng)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours.kind == "bootstrap"
    assert ours.value == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.03 * width)


def test_all_correct_is_wilson_and_not_a_point() -> None:
    found = stats.mean_estimate(scores(np.ones(16), trials=1), 0.95, 500, np.random.default_rng(0))
    expected = binomtest(16, 16).proportion_ci(0.95, method="wilson")
    assert (found.kind, found.low, found.high) == ("wilson", pytest.approx(expected.low), 1.0)


def test_items_behind_a_score_count_as_trials_at_the_edge() -> None:
    found = stats.mean_estimate(scores(np.ones(16), trials=45), 0.95, 500, np.random.default_rng(0))
    assert found.low == pytest.approx(binomtest(720, 720).proportion_ci(0.95, method="wilson").low)


def test_failures_that_come_together_widen_the_interval() -> None:
    """The same 15 wrong items: all in one sample of 15, or one in each of four samples and the rest alike."""
    together = np.ones(16)
    together[0] = 0.0
    apart = np.ones(16)
    apart[:4] = [11 / 15, 11 / 15, 11 / 15, 12 / 15]
    rng = np.random.default_rng(0)
    wide = stats.mean_estimate(scores(together, trials=15), 0.95, 500, rng)
    narrow = stats.mean_estimate(scores(apart, trials=15), 0.95, 500, rng)
    assert wide.value == pytest.approx(narrow.value)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_repeats_of_one_problem_are_not_independent_samples() -> None:
    rng = np.random.default_rng(time.time_ns())
    per_problem = rng.normal(size=24)
    repeated = np.repeat(per_problem, 8)
    problems = np.repeat(np.arange(24), 8)
    clustered = stats.mean_estimate(scores(repeated, problems), 0.95, 20_000, np.random.default_rng(1))
    single = stats.mean_estimate(scores(per_problem), 0.95, 20_000, np.random.default_rng(1))
    naive = stats.mean_estimate(scores(repeated), 0.95, 20_000, np.random.default_rng(1))
    assert (clustered.low, clustered.high) == pytest.approx((single.low, single.high))
    assert naive.high - naive.low < 0.6 * (clustered.high - clustered.low)


def test_one_problem_cannot_bound_a_loss() -> None:
    found = stats.mean_estimate(scores([2.5, 2.7], [0, 0]), 0.95, 100, np.random.default_rng(0))
    assert found.value == pytest.approx(2.6)
    assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize(
    ("truth", "items", "concentration", "samples"),
    [(0.985, 15, 8.0, 16), (0.9, 15, 8.0, 32), (0.5, 1, None, 24), (0.97, 1, None, 40)],
)
def test_coverage_of_proportions(truth: float, items: int, concentration: float | None, samples: int) -> None:
    """Correlated items (beta-binomial) and single ones: a 95 % interval holds the truth about that often."""
    rng = np.random.default_rng(time.time_ns())
    hits, runs = 0, 400
    for _ in range(runs):
        rate = rng.beta(truth * concentration, (1 - truth) * concentration, samples) if concentration else truth
        drawn = rng.binomial(items, rate, samples) / items
        found = stats.mean_estimate(scores(drawn, trials=items), 0.95, 400, rng)
        hits += found.low <= truth <= found.high
    assert 0.87 <= hits / runs <= 0.995


def test_coverage_of_skewed_losses() -> None:
    rng = np.random.default_rng(time.time_ns())
    truth, runs = float(np.exp(0.125)), 400
    found = [stats.mean_estimate(scores(rng.lognormal(0, 0.5, 30)), 0.95, 400, rng) for _ in range(runs)]
    assert 0.88 <= np.mean([f.low <= truth <= f.high for f in found]) <= 0.98


@pytest.mark.parametrize("samples", [2, 4, 8])
def test_few_losses_get_students_interval(samples: int) -> None:
    rng = np.random.default_rng(time.time_ns())
    ours, full = rng.normal(2, 1, samples), rng.normal(2, 1, samples)
    alone = stats.mean_estimate(scores(ours), 0.95, 500, rng)
    assert (alone.low, alone.high) == pytest.approx(tuple(ttest_1samp(ours, 0).confidence_interval(0.95)))
    paired = stats.paired_difference([(scores(ours), scores(full))], 0.95, 500, rng)
    assert (paired.low, paired.high) == pytest.approx(tuple(ttest_rel(ours, full).confidence_interval(0.95)))


def test_few_scores_stay_in_their_range() -> None:
    found = stats.mean_estimate(scores([0.99, 0.9, 0.3, 0.8, 0.95, 0.97], trials=1), 0.99, 500, _rng())
    assert found.kind == "student" and found.high == 1.0 and found.low > 0


def test_pairing_sees_what_the_two_means_hide() -> None:
    rng = np.random.default_rng(time.time_ns())
    full = rng.normal(0, 5, 40)
    ours = full - 0.5 + rng.normal(0, 0.2, 40)
    found = stats.paired_difference([(scores(ours), scores(full))], 0.95, 4000, rng)
    assert found.value == pytest.approx((ours - full).mean())
    assert found.high < 0 and found.p_value < 0.01
    theirs = bootstrap((ours - full,), np.mean, n_resamples=20_000, method="BCa", rng=rng).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_p_value_holds_its_level() -> None:
    rng = np.random.default_rng(time.time_ns())
    zero = scores(np.zeros(30))
    null = [stats.paired_difference([(scores(rng.normal(size=30)), zero)], 0.95, 400, rng).p_value for _ in range(400)]
    assert 0.015 <= np.mean(np.array(null) <= 0.05) <= 0.10


@pytest.mark.parametrize("shift", [0.1, 0.2, -0.35])
def test_p_value_agrees_with_sign_flips(shift: float) -> None:
    rng = np.random.default_rng(time.time_ns())
    noise = rng.normal(size=30)
    gaps = (noise - noise.mean()) / noise.std() + shift
    found = stats.paired_difference([(scores(gaps), scores(np.zeros(30)))], 0.95, 20_000, rng).p_value
    flips = permutation_test((gaps,), np.mean, permutation_type="samples", n_resamples=20_000, rng=rng).pvalue
    assert found == pytest.approx(flips, rel=0.3, abs=0.01)


def test_two_problems_cannot_be_significant() -> None:
    found = stats.paired_difference([(scores([0.0, 0.0], trials=1), scores([1.0, 1.0], trials=1))], 0.95, 999, _rng())
    assert found.value == -1 and found.p_value == 0.5


def test_two_perfect_methods_differ_by_zero_but_not_exactly() -> None:
    perfect = scores(np.ones(16), trials=1)
    found = stats.paired_difference([(perfect, perfect)], 0.95, 500, _rng())
    bound = 1 - binomtest(16, 16).proportion_ci(0.95, method="wilson").low
    assert (found.value, found.p_value) == (0, 1)
    assert (found.low, found.high) == pytest.approx((-bound, bound))


def test_newcombe_paired_interval_against_his_worked_example() -> None:
    """Newcombe 1998 (Statistics in Medicine 17:2635), method 10 without continuity correction: e=36 f=12 g=2 h=0."""
    ours = np.array([1.0] * 36 + [1.0] * 12 + [0.0] * 2)
    full = np.array([1.0] * 36 + [0.0] * 12 + [1.0] * 2)
    low, high = stats._newcombe(scores(ours, trials=1), scores(full, trials=1), 0.95)
    assert (low, high) == pytest.approx((0.0569, 0.3404), abs=5e-4)


def test_suite_mean_resamples_within_tasks() -> None:
    """Two tasks of very different level: their distance is no uncertainty of the mean."""
    rng = np.random.default_rng(time.time_ns())
    easy, hard = rng.normal(10, 0.1, 30), rng.normal(0, 0.1, 60)
    found = stats.mean_of_means([scores(easy), scores(hard)], 0.95, 4000, rng)
    expected = 1.96 * np.sqrt(easy.var() / 30 + hard.var() / 60) / 2
    assert found.value == pytest.approx((easy.mean() + hard.mean()) / 2)
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.1)


def test_suite_mean_of_perfect_tasks_is_not_a_point() -> None:
    perfect = scores(np.ones(16), trials=1)
    found = stats.mean_of_means([perfect] * 4, 0.95, 500, _rng())
    alone = stats.mean_estimate(perfect, 0.95, 500, _rng())
    assert found.high == 1.0 and 1 - found.low == pytest.approx((1 - alone.low) / 2)


def test_holm_on_a_textbook_family() -> None:
    """p = .01, .04, .03, .005: the adjusted values R's p.adjust(method='holm') prints."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_generator_depends_on_the_cell_alone() -> None:
    first = stats.generator(0, "quest", 0.1).random(4)
    assert np.array_equal(first, stats.generator(0, "quest", 0.1).random(4))
    assert not np.array_equal(first, stats.generator(0, "quest", 0.2).random(4))
    assert not np.array_equal(stats.generator("ab", "c").random(4), stats.generator("a", "bc").random(4))


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_repeats_of_problems_that_are_never_solved_count_as_one_each() -> None:
    found = stats.mean_estimate(
        scores(np.zeros(480), np.repeat(np.arange(30), 16), 1), 0.95, 500, np.random.default_rng(0)
    )
    assert (found.kind, found.low) == ("wilson", 0.0)
    assert found.high == pytest.approx(binomtest(0, 30).proportion_ci(0.95, method="wilson").high)


def test_one_problem_solved_often_is_still_one_problem() -> None:
    """16 right draws of one problem are far from the edge sample by sample; by problem, 29 of 30 sit at it."""
    values = np.zeros((30, 16))
    values[3] = 1
    clusters = np.repeat(np.arange(30), 16)
    found = stats.mean_estimate(scores(values.ravel(), clusters, 1), 0.95, 500, np.random.default_rng(0))
    whole = binomtest(1, 30).proportion_ci(0.95, method="wilson")
    assert (found.kind, found.low, found.high) == (
        "wilson",
        pytest.approx(whole.low, abs=0.01),
        pytest.approx(whole.high, abs=0.01),
    )


def test_intervals_over_repeated_draws_cover_the_truth() -> None:
    """avg@8 of 30 problems of very different difficulty: nearly 95 % of intervals hold the mean difficulty."""
    rng = np.random.default_rng(time.time_ns())
    clusters = np.repeat(np.arange(30), 8)
    covered = paired = 0
    for _ in range(200):
        ours, theirs = rng.beta(0.5, 0.7, size=30), rng.beta(0.5, 0.7, size=30)
        mine = scores(rng.random(240) < ours.repeat(8), clusters, 1)
        full = scores(rng.random(240) < theirs.repeat(8), clusters, 1)
        found = stats.mean_estimate(mine, 0.95, 300, rng)
        covered += found.low <= 0.5 / 1.2 <= found.high
        gap = stats.paired_difference([(mine, full)], 0.95, 300, rng)
        paired += gap.low <= 0 <= gap.high
    assert covered >= 174 and paired >= 174  # five standard deviations of a binomial below 95 %


@pytest.mark.parametrize(("margin", "tasks"), [(0.02, 1), (0.02, 3), (0.05, 2)])
def test_so_many_samples_show_that_nothing_was_lost_and_no_fewer(margin: float, tasks: int) -> None:
    needed = stats.samples_for_margin(margin, tasks)
    for count, shown in ((needed, True), (needed - 1, False)):
        perfect = stats.Scores(np.ones(count), np.arange(count), np.ones(count, dtype=np.int64))
        found = stats.paired_difference([(perfect, perfect)] * tasks, 0.95, 100, np.random.default_rng(0))
        assert (found.low >= -margin) == shown, found


def test_the_evidence_has_samples_enough_to_conclude() -> None:
    from longdecode.evals.run_config import load_run_config
    from longdecode.reporting.verdicts import MARGIN

    suite = load_run_config(Path(__file__).parents[2] / "config" / "h200.yaml").suites["mini_recall"]
    assert suite.samples >= stats.samples_for_margin(MARGIN, len(suite.tasks))


@pytest.mark.parametrize(("wins", "losses"), [(37, 4), (2, 38), (5, 5), (0, 1), (1, 0)])
def test_mcnemar_sums_the_binomial_tails(wins: int, losses: int) -> None:
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n
    assert stats.mcnemar_exact(wins, losses) == pytest.approx(min(1.0, 2 * tail))


def test_pairs_that_all_agree_show_no_difference() -> None:
    assert stats.mcnemar_exact(0, 0) == 1.0
    assert stats.sign_flip(np.zeros(9), 100, np.random.default_rng(0)) == 1.0


def test_sign_flips_of_equal_steps_are_mcnemar() -> None:
    gaps = np.array([1.0] * 9 + [-1.0] * 2 + [0.0] * 50)
    assert stats.sign_flip(gaps, 4096, np.random.default_rng(0)) == pytest.approx(stats.mcnemar_exact(9, 2))


@pytest.mark.parametrize("draws", [4096, 4000])
def test_sign_flips_agree_with_scipy_tried_in_full_and_drawn(draws: int) -> None:
    gaps = np.random.default_rng(3).normal(0.4, 1.0, 12)
    expected = permutation_test((gaps,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=1e5)
    found = stats.sign_flip(gaps, draws, np.random.default_rng(1))
    assert found == pytest.approx(expected.pvalue, abs=1e-12 if draws == 4096 else 0.03)


def test_near_the_edge_the_p_value_is_that_of_sign_flips() -> None:
    """Four answers lost of 40: 2 * 2**-4, exact; the bootstrap of the shifted mean gives less."""
    ours = stats.Scores(np.array([0.0] * 4 + [1.0] * 36), np.arange(40), np.ones(40, dtype=np.int64))
    full = stats.Scores(np.ones(40), np.arange(40), np.ones(40, dtype=np.int64))
    found = stats.paired_difference([(ours, full)], 0.95, 1000, np.random.default_rng(0))
    assert found.p_value == pytest.approx(2 * 2.0**-4)
