"""Paired differences at equal reads, against results worked out by hand or by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import agreement, direction, marked


def cell(scores: list[float], read: float, context: int = 100) -> dict[pairs.Key, pairs.Sample]:
    return {
        ("suite", "task", context, 0, i): pairs.Sample(score, 1, f"prompt {i}", read) for i, score in enumerate(scores)
    }


def point(label: str, budget: str, share: float, scores: list[float]) -> pairs.Point:
    return pairs.Point(label, budget, share, cell(scores, 100 * share))


def test_the_share_is_what_was_read_over_what_full_read_at_the_same_place() -> None:
    ours = cell([0.0, 1.0], 20, 100) | cell([1.0], 30, 300)
    full = cell([1.0, 1.0], 80, 100) | cell([1.0], 240, 300)
    assert pairs.achieved_share(ours, full) == pytest.approx((20 / 80 + 30 / 240) / 2)


def test_between_two_budgets_scores_are_interpolated_in_the_logarithm_of_the_share() -> None:
    low, high = point("r", "0.1", 0.1, [0.0, 0.2]), point("r", "0.4", 0.4, [1.0, 0.6])
    found = pairs.at_share([high, low], 0.2)
    weight = math.log(2) / math.log(4)
    values = [sample.score for sample in found.samples.values()]
    assert values == pytest.approx([weight * 1.0, (1 - weight) * 0.2 + weight * 0.6])
    assert (found.share, found.budgets, found.nearest) == (0.2, "0.1 0.4", "")


@pytest.mark.parametrize(("share", "budget", "said"), [(0.05, "0.1", "reads more"), (0.9, "0.4", "reads less")])
def test_outside_its_range_the_nearest_budget_is_taken_and_said(share: float, budget: str, said: str) -> None:
    found = pairs.at_share([point("r", "0.1", 0.1, [0.0]), point("r", "0.4", 0.4, [1.0])], share)
    assert (found.budgets, found.nearest) == (budget, said) and found.share != share


def test_at_a_budgets_own_share_its_own_scores_stand() -> None:
    low, high = point("r", "0.1", 0.1, [0.0, 1.0]), point("r", "0.4", 0.4, [1.0, 1.0])
    assert pairs.at_share([low, high], 0.4).value == pytest.approx(high.value)


def test_a_paired_difference_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        common = rng.normal(0.5, 0.2, 40)
        ours, theirs = (cell(list(common + shift + rng.normal(0, 0.05, 40)), 1.0) for shift in (0.1, 0.0))
        found = pairs.difference(ours, theirs, 0.9, 400, seed)
        covered += found.low <= 0.1 <= found.high
        assert found.high - found.low < 0.06  # unpaired it would be 0.15
    assert 46 <= covered <= 60


def test_averaging_runs_keeps_samples_that_all_have() -> None:
    one, two = cell([0.0, 1.0, 1.0], 10), cell([1.0, 1.0], 30)
    found = pairs.average([one, two])
    assert [sample.score for sample in found.values()] == [0.5, 1.0]
    assert all(sample.read == 20 for sample in found.values())


def test_points_lack_no_sample_of_full() -> None:
    assert pairs.mean_of(cell([0.0, 1.0], 1.0, 100) | cell([1.0], 1.0, 200)) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("low", "high", "said"), [(2.0, 3.0, "agree"), (2.8, 3.0, "measured higher"), (1.0, 2.0, "measured lower")]
)
def test_a_published_number_is_held_against_the_interval(low: float, high: float, said: str) -> None:
    assert agreement(2.7, (low + high) / 2, low, high)[0] == said
    assert agreement(None, 1.0, low, high) == ("nothing published", "muted")


@pytest.mark.parametrize(
    ("published", "low", "high", "said", "level"),
    [
        (0.2, 1.0, 3.0, "same order, above 0", "shown"),
        (0.2, -3.0, -1.0, "other order, below 0", "worse"),
        (-0.2, -3.0, -1.0, "same order, below 0", "shown"),
        (0.2, -1.0, 3.0, "cannot be told apart", "muted"),
        (None, 1.0, 3.0, "above 0", "shown"),
    ],
)
def test_an_order_needs_an_interval_on_one_side(
    published: float | None, low: float, high: float, said: str, level: str
) -> None:
    assert direction(published, low, high) == (said, level)


def test_marks_in_prose_become_elements_and_nothing_else_does() -> None:
    assert marked("a `b<c>` [d](e.html#f) <g>") == 'a <code>b&lt;c&gt;</code> <a href="e.html#f">d</a> &lt;g&gt;'
