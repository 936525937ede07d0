"""The summary table against numbers worked out by hand or by numpy."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from longdecode.analysis.cells import COLUMNS, CellError, all_cells, summary_table
from longdecode.evals.records import Record
from longdecode.evals.stats import Spread

SPREAD = Spread(0.95, 400, 0)
READS = {"kv_tokens_read": 100.0, "kv_tokens_read_sparse": 80.0, "kv_bytes_per_step": 1000.0,
         "metadata_bytes_per_step": 10.0}  # fmt: skip
Cell = Callable[..., list[Record]]


@pytest.fixture
def cell(make_record: Callable[..., Record]) -> Cell:
    """Make the records of a cell, one a score; ``None`` stands for a sample that was not scored in time."""

    def make(scores: list[float | None], variant: str = "full", **changes: Any) -> list[Record]:
        budget = {"budget": "full"} if variant == "full" else {"budget": "0.1", "budget_tokens": 205}
        fields = {"variant": variant, "method": variant, "task": "single", "measures": READS, **budget} | changes
        return [
            make_record(sample_index=i, prompt_sha256=f"{fields['task']}-{i}",
                        **(fields | ({"status": "timeout"} if score is None else {"score": score})))
            for i, score in enumerate(scores)
        ]  # fmt: skip

    return make


def table(records: list[Record]) -> pd.DataFrame:
    return summary_table(all_cells(records), SPREAD)


def only(frame: pd.DataFrame, **where: Any) -> pd.Series:
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_columns_and_means(cell: Cell) -> None:
    rng = np.random.default_rng(1)
    quest = rng.random(20).tolist()
    mixed = cell(rng.random(20).tolist()) + cell(quest, "quest_w2", method="quest", params={"window": 2})
    random.shuffle(mixed)
    frame = table(mixed)
    assert tuple(frame.columns) == COLUMNS
    row = only(frame, variant="quest_w2")
    assert row["value"] == pytest.approx(np.mean(quest)) and row["low"] < row["value"] < row["high"]
    assert (row["method"], row["params"], row["n"], row["budget_tokens"]) == ("quest", '{"window": 2}', 20, 205)
    assert (row["status"], row["revision"], row["kv_bytes_per_step"]) == ("ok", "r", 1000)
    assert pd.isna(only(frame, variant="full")["budget_tokens"])


def test_order_of_records_and_other_cells_change_nothing(cell: Cell) -> None:
    base = cell([0.1, 0.9, 0.4, 0.3, 0.2, 0.8]) + cell([0.5, 0.2, 0.4, 0.1, 0.1, 0.7], "quest")
    shuffled = [*base, *cell([1.0] * 6, task="other"), *cell([0.0] * 6, "streaming", budget="0.5")]
    random.shuffle(shuffled)
    first, second = (only(table(records), task="single", variant="quest") for records in (base, shuffled))
    pd.testing.assert_series_equal(first, second, check_names=False)


@pytest.mark.parametrize("scored", [0, 1])
def test_a_cell_that_could_not_run_is_marked_as_missing(cell: Cell, make_record: Any, scored: int) -> None:
    lost = cell([1.0], "tidal")[0].model_copy(
        update={"sample_index": -1, "status": "oom", "score": None, "reason": "too large"}
    )
    row = only(table([*cell([1.0, 0.0]), *cell([1.0] * scored, "tidal"), lost]), variant="tidal")
    assert (row["status"], row["n"]) == ("oom", scored) and row[["value", "low", "high"]].isna().all()


def test_samples_that_could_not_be_marked_are_neither_right_nor_wrong(cell: Cell) -> None:
    frame = table([*cell([1.0, 1.0, 0.0, 1.0]), *cell([1.0, None, 1.0, 1.0], "quest")])
    row = only(frame, variant="quest")
    assert (row["status"], row["n"], row["n_timeout"], row["value"]) == ("ok", 3, 1, 1.0)
    assert only(frame, variant="full")["n_timeout"] == 0


def test_a_cell_of_timeouts_alone_is_one(cell: Cell) -> None:
    other = cell([1.0] * 3, task="other") + cell([1.0] * 3, "quest", task="other")
    frame = table([*cell([1.0, 0.0, 1.0]), *cell([None] * 3, "quest"), *other])
    row = only(frame, variant="quest", task="single")
    assert (row["status"], row["n"], row["n_timeout"]) == ("timeout", 0, 3) and pd.isna(row["value"])
    whole = only(frame, variant="quest", task="all")
    assert whole["status"] == "timeout" and pd.isna(whole["value"])


def test_repeats_of_a_prompt_are_one_unit_of_the_interval_and_all_count_in_the_mean(cell: Cell) -> None:
    """Two prompts right in 16 of 16 draws, ten in none, one in 1 of 1: the mean is over draws, the interval over 13."""
    draws = [[1.0] * 16] * 2 + [[0.0] * 16] * 10 + [[1.0]]
    records = [
        record.model_copy(update={"prompt_sha256": f"p{place}", "seed": place})
        for place, scores in enumerate(draws)
        for record in cell(list(scores))
    ]
    row = only(table(records))
    whole = binomtest(3, 13).proportion_ci(method="wilson")
    assert (row["n"], row["value"]) == (193, pytest.approx(33 / 193))
    assert (row["low"], row["high"]) == pytest.approx((whole.low, whole.high))


def test_truncation_is_a_share_where_a_task_waits_for_an_end(cell: Cell) -> None:
    cut = [
        record.model_copy(update={"measures": {"truncated": i < 3, "accepted": i, "decode_ms": 3.0}})
        for i, record in enumerate(cell([1.0] * 4))
    ]
    frame = table([*cut, *cell([1.0] * 4, task="other")])
    assert only(frame, task="single")["truncated"] == 0.75
    assert only(frame, task="single")["accepted"] == 1.5 and "decode_ms" not in frame
    assert pd.isna(only(frame, task="other")["truncated"])


def test_suite_mean_weighs_tasks_equally(cell: Cell) -> None:
    rng = np.random.default_rng(2)
    quest = {"single": rng.random(30).tolist(), "multi": rng.random(10).tolist()}
    records = [r for task, scores in quest.items() for v in ("full", "quest") for r in cell(scores, v, task=task)]
    row = only(table(records), task="all", variant="quest")
    assert row["value"] == pytest.approx(np.mean([np.mean(scores) for scores in quest.values()]))
    assert row["n"] == 40 and row["low"] < row["value"] < row["high"]


def test_suite_mean_takes_the_tasks_that_full_could_do(cell: Cell) -> None:
    unfit = {"sample_index": -1, "status": "unsupported", "score": None}
    records = [cell([0.0], task="long")[0].model_copy(update=unfit), *cell([0.0] * 4, "quest", task="long")]
    for task, variant in product(("single", "multi"), ("full", "quest")):
        records += cell([0.5, 1.0, 0.0, 1.0], variant, task=task)
    row = only(table(records), task="all", variant="quest")
    assert (row["status"], row["value"]) == ("ok", 0.625)


def test_suite_mean_with_a_missing_task_has_no_value(cell: Cell) -> None:
    records = [*cell([1.0] * 4), *cell([1.0] * 4, task="multi"), *cell([1.0] * 4, "quest")]
    oom = cell([0.0], "quest", task="multi")[0].model_copy(update={"sample_index": -1, "status": "oom", "score": None})
    for more, status in (([oom], "oom"), ([], "unsupported")):
        row = only(table([*records, *more]), task="all", variant="quest")
        assert row["status"] == status and pd.isna(row["value"])


def test_no_suite_mean_over_different_units_and_losses_are_no_shares(cell: Cell) -> None:
    frame = table(cell([1.0] * 4) + cell([2.0] * 4, task="loss", unit="nats/token", higher_is_better=False))
    assert "all" not in set(frame["task"])
    assert only(frame, task="loss")["high"] == 2.0, "Wilson's interval is of shares alone"
    assert only(frame, task="single")["low"] == pytest.approx(binomtest(4, 4).proportion_ci(method="wilson").low)


def test_a_sample_that_is_there_twice_is_refused(cell: Cell) -> None:
    with pytest.raises(CellError, match="twice"):
        table(cell([1.0]) * 2)
