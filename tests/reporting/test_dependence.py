"""Dependent answers and too few samples on made-up records whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from longdecode.evals import summary
from longdecode.evals.records import Provenance, Record
from longdecode.evals.stats import Scores
from longdecode.reporting.dependence import Dependence, dependence, design_effect
from longdecode.reporting.results import Results
from longdecode.reporting.solved import MARGIN
from longdecode.reporting.verdicts import Grid, grid

SPREAD = summary.Spread(0.95, 200, 0)
MADE_BY = Provenance(
    revision="0" * 40, dirty=False, code_hash="c", model_hash="m", data_hash="d", device="NVIDIA H200",
    dtype="bfloat16", versions={}, started_at="2026-01-01T00:00:00+00:00",
)  # fmt: skip
Marks = Callable[[int], list[float]]


def cell(label: str, budget: str, prompts: int, marks: Marks, **more: Any) -> list[Record]:
    """One record a prompt, with the marks of its answers; Full is the label ``full``."""
    return [
        Record(
            profile="p", model="m", variant=label, params={}, context=4096, batch=1, budget=budget, seed=0, status="ok",
            budget_tokens=None if budget == "full" else 400, provenance=MADE_BY, method=label, suite="s",
            task_version=1, metric="accuracy", unit="fraction", higher_is_better=True, data_source="generated",
            sample_index=index, prompt_sha256=str(index), score=float(np.mean(marks(index))), parts=marks(index),
            measures={"kv_bytes_per_step": 100.0, "metadata_bytes_per_step": 0.0}, **({"task": "t"} | more),
        )
        for index in range(prompts)
    ]  # fmt: skip


def right(answers: int) -> Marks:
    return lambda index: [1.0] * answers


def together(answers: int) -> Marks:
    """Every second prompt is right throughout, the others wrong throughout."""
    return lambda index: [float(index % 2)] * answers


def alone(answers: int) -> Marks:
    """Each answer is right or wrong on its own."""
    return lambda index: [float(mark) for mark in np.random.default_rng(index).random(answers) < 0.5]


def board(records: list[Record]) -> tuple[Grid, Dependence, Results]:
    table = summary.summarise(records, SPREAD)
    table["kind"], table["share"] = table["method"], 0.1
    found = dependence(records, SPREAD)
    results = Results("p", {}, "", table, table[:0], table[:0], records, frozenset(), None, dependence=found)
    return grid(results, results.topic("m", "s", "t"), ["quest"]), found, results


def test_the_design_effect_of_whole_prompts_is_their_answers_and_that_of_lone_answers_is_one() -> None:
    for marks, low, high in ((together(20), 19.0, 22.0), (alone(20), 0.4, 1.6)):
        rows = [marks(index) for index in range(40)]
        scores = Scores(np.array([np.mean(row) for row in rows]), np.arange(40), np.full(40, 20))
        assert low < (design_effect(scores) or 0.0) < high
    assert design_effect(Scores(np.ones(40), np.arange(40), np.full(40, 20))) is None, "the edge shows no effect"


@pytest.mark.parametrize(("small", "level"), [(together(20), "few"), (alone(20), "shown")])
def test_a_verdict_at_the_edge_falls_where_answers_depend(small: Marks, level: str) -> None:
    """32 prompts of 20 answers, all right: 640 answers show equality, 32 prompts that fail as one do not."""
    records = [
        *cell("full", "full", 32, right(20)),
        *cell("quest", "0.5", 32, right(20)),
        *cell("quest", "0.1", 32, small),
    ]
    found, _, results = board(records)
    ((_, (only,), _),) = found.rows
    assert (only.level, only.budget[:2]) == (level, "50")
    row = results.summary[results.summary["budget"] == "0.5"].iloc[0]
    assert row["diff_low"] > -MARGIN, "the table's interval counts answers"


def test_a_shown_cell_of_enough_prompts_falls_to_the_estimate_with_the_wider_interval() -> None:
    """Four of 4,000 answers differ, within the margin; four of 200 would be by the estimate alone."""
    rows = [
        *cell("full", "full", 200, right(20)),
        *cell("quest", "0.5", 200, lambda index: [float(index > 3), *[1.0] * 19]),
    ]
    ((_, (before,), _),) = board(rows)[0].rows
    ((_, (after,), _),) = board([*rows, *cell("quest", "0.1", 200, together(20))])[0].rows
    assert (before.level, after.level) == ("shown", "estimate")
    assert after.bounds != before.bounds and after.words == "answers to one prompt depend on each other"


def test_without_dependence_the_bounds_are_those_of_the_summary() -> None:
    """Answers that are one a prompt are their own clusters."""
    rows = [*cell("full", "full", 60, right(1)), *cell("quest", "0.5", 60, lambda index: [float(index > 1)])]
    _, found, results = board(rows)
    row = results.summary[results.summary["method"] == "quest"].iloc[0]
    assert found.bounds["m", "s", "t", "quest", "0.5", 4096] == pytest.approx((row["diff_low"], row["diff_high"]))


@pytest.mark.parametrize(
    ("prompts", "words"), [(32, "n too small: 32 samples give ±10.7 points, 189 needed"), (189, "")]
)
def test_too_few_samples_say_how_many_are_needed(prompts: int, words: str) -> None:
    """z^2 / (n + z^2) with z = 1.96, by hand: 10.7 points for 32, 2 points for 188.2."""
    assert math.isclose(3.8415 / (32 + 3.8415), 0.1072, abs_tol=1e-4)
    found, _, _ = board([*cell("full", "full", prompts, right(1)), *cell("quest", "0.5", prompts, right(1))])
    ((_, (only,), _),) = found.rows
    assert list(found.too_few) == [words]
    assert (only.level, only.words) == (("few", words) if words else ("shown", "equivalent within the margin"))
    assert ("n too small" in only.headline) == bool(words)


def test_a_loss_is_a_loss_however_few_the_samples() -> None:
    found, _, _ = board([*cell("full", "full", 32, right(1)), *cell("quest", "0.5", 32, together(1))])
    assert found.rows[0][2].level == "worse"


def test_tasks_with_scores_between_right_and_wrong_are_left_out() -> None:
    """Overlap with a reference has no answers to count, be some of its scores 0."""
    rows = [*cell("full", "full", 8, right(1)), *cell("quest", "0.5", 8, lambda index: [0.3])]
    rows = [row.model_copy(update={"parts": None}) for row in rows]
    assert dependence(rows, SPREAD) == Dependence()
