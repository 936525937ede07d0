"""Paired differences at equal reads, against results worked out by hand or by simulation."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

from longdecode.evals.records import Record
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import agreement, direction, equivalence, flips, marked


def cell(scores: list[float], read: float, context: int = 100) -> dict[pairs.Key, pairs.Sample]:
    return {
        ("suite", "task", context, 0, i): pairs.Sample(score, 1, f"prompt {i}", read) for i, score in enumerate(scores)
    }


def point(label: str, budget: str, share: float, scores: list[float]) -> pairs.Point:
    return pairs.Point(label, budget, share, cell(scores, 100 * share))


@pytest.fixture
def record(lychee_run: ModuleType) -> Record:
    spec = {"params": {}}
    return next(lychee_run._cell("lychee", spec, "miniature", "mini_longgen", "mini_longgen_15", 2048, 0.1,
                                 np.random.default_rng(0)))  # fmt: skip


def test_the_share_is_what_was_read_over_what_full_read_at_the_same_place() -> None:
    ours = cell([0.0, 1.0], 20, 100) | cell([1.0], 30, 300)
    full = cell([1.0, 1.0], 80, 100) | cell([1.0], 240, 300)
    assert pairs.achieved_share(ours, full) == pytest.approx((20 / 80 + 30 / 240) / 2)


def test_the_nearest_runs_are_runs_as_they_were_made() -> None:
    """One below the share and one at or above it; a share between two runs gives both, never a blend."""
    low, high = point("r", "0.1", 0.1, [0.0, 0.2]), point("r", "0.4", 0.4, [1.0, 0.6])
    assert pairs.nearest_runs([high, low], 0.2) == (low, high)
    assert pairs.nearest_runs([high, low], 0.4) == (low, high)
    assert pairs.nearest_runs([high, low], 0.05) == (None, low)
    assert pairs.nearest_runs([high, low], 0.9) == (high, None)


def test_bytes_are_keys_values_and_metadata(record: Record) -> None:
    assert (
        pairs.total_bytes(
            record.model_copy(update={"measures": {"kv_bytes_per_step": 5.0, "metadata_bytes_per_step": 2.0}})
        )
        == 7
    )
    assert math.isnan(pairs.total_bytes(record.model_copy(update={"measures": {}})))
    update = {"measures": {"kv_tokens_read": 9.0}}
    assert pairs.sparse_tokens(record.model_copy(update=update)) == 9


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


def test_near_100_percent_wins_and_losses_decide() -> None:
    """Thirty tasks of 40 problems, one lost in 20 of them: too few in a task, enough in all."""
    ours, theirs = {}, {}
    for task in range(30):
        for i in range(40):
            key = ("suite", f"task {task}", 100, 0, i)
            theirs[key] = pairs.Sample(1.0, 1, f"{task} {i}", 1.0)
            ours[key] = pairs.Sample(float(i > 0 or task >= 20), 1, f"{task} {i}", 1.0)
    found = pairs.difference(ours, theirs, 0.95, 500, "edge")
    assert (found.wins, found.losses) == (0, 20) and found.p_value == pytest.approx(2 * 0.5**20)
    assert found.value == pytest.approx(-20 / 1200) and found.high < 0 and found.high - found.low < 0.02
    assert equivalence(found, 0.05, 0.03) == "equivalent within 3 points; fewer right by 1.7"
    assert equivalence(found, 0.05, 0.001) == "worse by more than 0.1 points"
    assert flips(found) == "0 won, 20 lost, p <0.001"


def test_equal_answers_are_said_to_be_equal() -> None:
    found = pairs.difference(cell([1.0] * 40, 1.0), cell([1.0] * 40, 1.0), 0.95, 200, "same")
    assert (found.p_value, found.sign(0.05), flips(found)) == (1.0, 0, "every answer the same")


def test_points_lack_no_sample_of_full() -> None:
    assert pairs.mean_of(cell([0.0, 1.0], 1.0, 100) | cell([1.0], 1.0, 200)) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("low", "high", "said"), [(2.0, 3.0, "agree"), (2.8, 3.0, "measured higher"), (1.0, 2.0, "measured lower")]
)
def test_a_published_number_is_held_against_the_interval(low: float, high: float, said: str) -> None:
    assert agreement(2.7, (low + high) / 2, low, high)[0] == said
    assert agreement(None, 1.0, low, high) == ("nothing published", "muted")


@pytest.mark.parametrize(
    ("published", "value", "p", "said", "level"),
    [
        (0.2, 2.0, 0.01, "same order, above 0", "shown"),
        (0.2, -2.0, 0.01, "other order, below 0", "worse"),
        (-0.2, -2.0, 0.01, "same order, below 0", "shown"),
        (0.2, 1.0, 0.05, "cannot be told apart", "muted"),
        (None, 2.0, 0.01, "above 0", "shown"),
    ],
)
def test_an_order_needs_a_test_that_rejects_no_difference(
    published: float | None, value: float, p: float, said: str, level: str
) -> None:
    assert direction(published, pairs.Paired(value, value - 1, value + 1, 3, 2, p), 0.05) == (said, level)


def test_marks_in_prose_become_elements_and_nothing_else_does() -> None:
    assert marked("a `b<c>` [d](e.html#f) <g>") == 'a <code>b&lt;c&gt;</code> <a href="e.html#f">d</a> &lt;g&gt;'
