"""Comparisons from records against hand enumeration: pairing, problems, families of Holm, tasks that Full cannot do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.evals.analysis.cells import PairError
from longdecode.evals.analysis.comparisons import COLUMNS, comparisons_table
from longdecode.evals.analysis.pairs import PairRequest
from longdecode.evals.analysis.significance import holm
from longdecode.evals.records import Record
from longdecode.evals.summary import Spread

SPREAD = Spread(0.95, 500, 0)
Make = Callable[..., Record]


@pytest.fixture
def cell(make_record: Make) -> Callable[..., list[Record]]:
    """Make the records of a cell, one a score; prompts are those of the same task and number."""

    def make(scores: list[float], label: str = "full", read: float = 1000.0, **changes: Any) -> list[Record]:
        task = changes.setdefault("task", "mini_recall_multikey")
        changes.setdefault("budget", "full" if label == "full" else "256")
        changes.setdefault("method", label)
        return [
            make_record(variant=label, sample_index=i, score=score, measures={"kv_tokens_read": read},
                        prompt_sha256=f"{task}-{i}", **changes)
            for i, score in enumerate(scores)
        ]  # fmt: skip

    return make


def only(table: pd.DataFrame, **where: Any) -> pd.Series:
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1, table
    return table.iloc[0]


def test_differences_are_paired_and_in_points(cell: Callable[..., list[Record]]) -> None:
    full, quest = [1.0] * 30 + [0.0] * 10, [1.0] * 18 + [0.0] * 22
    table = comparisons_table([*cell(full), *cell(quest, "quest")], [], {}, SPREAD)
    row = only(table)
    assert tuple(table.columns) == COLUMNS
    assert (row["a"], row["b"], row["n"], row["unit"], row["margin"]) == ("quest", "full", 40, "points", 2.0)
    assert (row["a_value"], row["b_value"], row["difference"]) == (45.0, 75.0, -30.0)
    assert row["low"] < -30 < row["high"] < 0
    assert (row["verdict"], row["status"], row["better"]) == ("worse", "ok", "higher")


def test_samples_that_one_side_lacks_are_left_out(cell: Callable[..., list[Record]]) -> None:
    table = comparisons_table([*cell([1.0] * 20), *cell([0.0] * 12, "quest")], [], {}, SPREAD)
    assert (only(table)["n"], only(table)["difference"]) == (12, -100.0)


def test_another_prompt_under_one_number_is_refused(cell: Callable[..., list[Record]]) -> None:
    other = [r.model_copy(update={"prompt_sha256": "x"}) for r in cell([1.0], "quest")]
    with pytest.raises(PairError, match="another prompt on each side"):
        comparisons_table([*cell([1.0]), *other], [], {}, SPREAD)


def test_samples_of_one_prompt_are_one_unit(cell: Callable[..., list[Record]]) -> None:
    same = {"prompt_sha256": "one"}
    records = [*cell([1.0] * 4), *cell([0.0, 1.0, 0.0, 1.0], "quest")]
    row = only(comparisons_table([r.model_copy(update=same) for r in records], [], {}, SPREAD))
    assert (row["n"], row["difference"], row["verdict"]) == (1, -50.0, "cannot tell")


def test_holm_is_over_the_variants_of_a_table(cell: Callable[..., list[Record]]) -> None:
    rng = np.random.default_rng(5)
    records = cell([1.0] * 60)
    for label in ("quest", "tova", "h2o"):
        records += cell([float(x) for x in rng.random(60) < 0.9], label)
    records += cell([0.0] * 60, "quest", budget="512")
    table = comparisons_table(records, [], {}, SPREAD)
    family = table[table["budget"] == "256"]
    assert family["p_holm"].tolist() == pytest.approx(holm(family["p"].tolist()))
    assert only(table, budget="512")["p_holm"] == only(table, budget="512")["p"]


def test_papers_pairs_stand_beside_those_with_full(cell: Callable[..., list[Record]]) -> None:
    records = [*cell([1.0] * 12), *cell([0.5] * 12, "quest"), *cell([0.75] * 12, "retro")]
    records += cell([0.25] * 12, "quest", model="fork")
    asked = [PairRequest(a=("retro",), b="quest"), PairRequest(a=("retro",), b="quest", b_model="fork")]
    table = comparisons_table(records, asked, {}, SPREAD)
    found = table[table["b"] == "quest"].set_index("b_model")["difference"].to_dict()
    assert found.pop("fork") == 50.0 and list(found.values()) == [25.0]


def test_a_task_that_full_cannot_do_is_in_no_verdict_and_no_mean(cell: Callable[..., list[Record]]) -> None:
    records = []
    for task, share in (("mini_recall_multikey", 80), ("mini_recall_two_hop", 8), ("passkey_depth_0", 72)):
        full, window = [1.0] * share + [0.0] * (80 - share), [0.0] * 72 + [1.0] * 8
        for label, scores, read in (("full", full, 1000.0), ("streaming", window, 100.0), ("quest", full[::-1], 100.0)):
            records += cell(scores, label, read, task=task, suite="mini_recall")
    table = comparisons_table(records, [], {}, SPREAD)
    failed = only(table, a="quest", task="mini_recall_two_hop")
    assert failed["status"] == "baseline_fails" and pd.isna(failed["verdict"]) and np.isnan(failed["p_holm"])
    kept = table[(table["a"] == "quest") & table["task"].isin(["mini_recall_multikey", "passkey_depth_0"])]
    mean = only(table, a="quest", task="all")
    assert mean["n"] == 160 and mean["difference"] == pytest.approx(kept["difference"].mean())


def test_a_task_that_fits_the_window_is_short_and_one_below_half_has_a_low_ceiling(
    cell: Callable[..., list[Record]],
) -> None:
    low = [1.0] * 12 + [0.0] * 28
    records = [*cell(low), *cell([0.0] * 40, "streaming", 950.0)]
    assert only(comparisons_table(records, [], {}, SPREAD))["status"] == "short"
    records = [*cell(low), *cell([0.0] * 40, "streaming", 100.0)]
    assert only(comparisons_table(records, [], {}, SPREAD))["status"] == "low_ceiling"


def test_of_a_loss_higher_is_worse(cell: Callable[..., list[Record]]) -> None:
    rng = np.random.default_rng(2)
    loss = rng.normal(2.0, 0.3, 30)
    as_loss: dict[str, Any] = {"unit": "nats/token", "higher_is_better": False, "metric": "loss"}
    records = cell(loss.tolist(), **as_loss) + cell((loss + 0.1).tolist(), "quest", **as_loss)
    row = only(comparisons_table(records, [], {}, SPREAD))
    assert row["difference"] == pytest.approx(0.1) and (row["verdict"], row["margin"]) == ("worse", 0.02)


def test_a_pool_is_the_mean_over_its_tasks(cell: Callable[..., list[Record]]) -> None:
    records = []
    for task, value in (("mini_longgen_15", 0.5), ("mini_longgen_45", 0.9)):
        records += cell([1.0] * 12, task=task, suite="mini_longgen")
        records += cell([value] * 12, "quest", task=task, suite="mini_longgen")
    table = comparisons_table(records, [], {"both": ["mini_longgen_15", "mini_longgen_45"]}, SPREAD)
    assert only(table, task="both")["difference"] == pytest.approx(-30.0)


def test_order_of_records_changes_nothing(cell: Callable[..., list[Record]]) -> None:
    rng = np.random.default_rng(3)
    records = cell([1.0] * 40) + [r for x in ("quest", "tova") for r in cell((rng.random(40)).tolist(), x)]
    tables = [comparisons_table(given, [], {}, SPREAD) for given in (records, records[::-1])]
    both = [table.sort_values("a", ignore_index=True) for table in tables]
    pd.testing.assert_frame_equal(*both)
