"""The front page's grid and chart: budgets that hold, losses that do not, and marks of scores that belong to a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting import family_grid, pareto, verdicts
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.results import ORACLE, Results
from longdecode.reporting.speed.measured import Speed
from longdecode.reporting.verdicts import FAILED, Grid
from longdecode.reporting.wording import NARROW

EMPTY = pd.DataFrame()
UNITS = {"ask": "fraction", "prose": "nats/token", "long": "fraction"}
FAMILIES = {"ask": "look-ups", "long": "look-ups", "prose": "text"}


def row(task: str, method: str, budget: str, gap: float, share: float, **more: Any) -> dict[str, Any]:
    unit = UNITS[task]
    value = (1.0 if unit == "fraction" else 0.0) + gap
    return {
        "model": "m", "suite": task, "task": task, "metric": "accuracy" if unit == "fraction" else "kl", "unit": unit,
        "method": method, "kind": method, "budget": budget, "budget_tokens": 64.0, "share": 0.1, "params": "{}",
        "context": 16384 if task == "long" else 32768, "batch": 1, "n": 16, "status": "ok", "data_source": "generated",
        "value": value, "low": value - 0.1, "high": value + 0.1, "diff_to_full": gap, "diff_low": gap - 0.1,
        "diff_high": gap + 0.1, "kv_bytes_per_step": 800 * share, "metadata_bytes_per_step": 200 * share,
    } | more  # fmt: skip


def run(rows: list[dict[str, Any]], config: dict[str, Any] | None = None) -> Results:
    full = [
        row(task, "full", "full", 0.0, 1.0) | {"diff_to_full": None} for task in dict.fromkeys(r["suite"] for r in rows)
    ]
    config = config or {"suites": {key: {} for key in UNITS}}
    return Results("p", config, "", pd.DataFrame([*full, *rows]), EMPTY, EMPTY, [], frozenset({"prose"}), None)


def timed(results: Results, *steps: tuple[str, str, int, float], **more: Any) -> Results:
    base = {"bench": "decode", "stage": "step", "status": "ok", "model": "m", "params": "{}", "device": "d",
            "context": 32768, "bytes_min": 1.0}  # fmt: skip
    rows = [
        base | {"subject": label, "label": label, "budget": budget, "batch": batch, "ratio": ratio,
                "ratio_low": ratio, "ratio_high": ratio} | more
        for label, budget, batch, ratio in steps
    ]  # fmt: skip
    return dataclasses.replace(results, speed=Speed(pd.DataFrame(rows), EMPTY, EMPTY, EMPTY, ("dear", "cheap")))


def families(results: Results) -> Sequence[tuple[str, Sequence[Grid]]]:
    return family_grid.suites_by_family(verdicts.board(results, "m"), FAMILIES)


@pytest.fixture
def lost() -> Results:
    """No method holds on every suite; ``cheap`` is near at a budget in bytes only."""
    return run(
        [
            row("ask", "oracle_topk", "256", -0.03, 0.6),
            row("ask", "dear", "256", 0.05, 0.5),
            row("ask", "dear", "bytes=0.25", 0.0, 0.0, status="unsupported", value=None, diff_to_full=None),
            row("ask", "cheap", "256", -0.5, 0.1),
            row("ask", "cheap", "bytes=0.25", 0.0, 0.25),
            row("prose", "dear", "256", 0.3, 0.5),
            row("prose", "cheap", "256", 0.4, 0.1),
            row("prose", "cheap", "bytes=0.25", 0.1, 0.25),
            row("long", "dear", "256", -0.2, 0.5),
            row("long", "cheap", "256", -0.9, 0.1),
        ]
    )


@pytest.fixture
def held() -> Results:
    """``thrifty`` holds from 64 tokens on, ``dear`` from 256 on, ``bad`` never."""
    sure = {"diff_low": -0.01, "diff_high": 0.01}
    return run(
        [
            row("ask", "thrifty", "64", -0.015, 0.1, **sure),
            row("ask", "thrifty", "256", 0.0, 0.3, **sure),
            row("ask", "dear", "64", -0.3, 0.2),
            row("ask", "dear", "256", -0.01, 0.5),
            row("ask", "bad", "64", -0.9, 0.01),
            row("ask", "bad", "256", -0.8, 0.02),
        ]
    )


def test_a_budget_in_bytes_is_timed_at_the_tokens_that_it_came_to(lost: Results) -> None:
    """``cheap`` is named at a quarter of the bytes, which is 64 tokens; most methods were timed at 256."""
    results = timed(lost, ("cheap", "64", 1, 3.0), ("cheap", "256", 1, 2.0), ("dear", "256", 1, 4.0))
    drawn = pareto._pairs(results, results.speed, "m").query("suite == 'ask' and label == 'cheap'")
    assert dict(zip(drawn["budget"], drawn["ratio"], strict=True)) == {"64": 3.0, "256": 2.0}


def test_a_method_whose_gate_failed_is_judged_nowhere(held: Results) -> None:
    steps = [("thrifty", "64", 1, 2.0), ("dear", "256", 1, 1.2)]
    results = timed(held, *steps)
    assert results.speed is not None
    table = results.speed.table
    table.loc[table["label"] == "thrifty", "status"] = "failed_gate"
    assert results.failed("m") == {"thrifty"}
    (grid,) = verdicts.board(results, "m")
    assert {label: every.headline for label, _, every in grid.rows}["thrifty"] == FAILED
    short = family_grid.family_grid(results, families(results))
    assert dict(short.rows)["thrifty"][0].text == FAILED
    assert set(pareto._pairs(results, results.speed, "m")["label"]) == {"dear"}


def test_the_grid_has_a_column_for_each_family_and_context_and_the_loss_where_a_budget_does_not_hold(
    lost: Results,
) -> None:
    grid = family_grid.family_grid(lost, families(lost))
    assert [(column.family, column.context, column.part) for column in grid.columns] == [
        ("look-ups", 16384, "1 of 2"), ("look-ups", 32768, "1 of 2"), ("text", 32768, ""),
    ]  # fmt: skip
    assert grid.heads == [("look-ups", 2), ("text", 1)]
    cells = {label: [(cell.level, cell.text) for cell in found] for label, found in grid.rows}
    assert cells["dear"] == [("worse", "−20.0"), ("estimate", "256"), ("worse", "+0.300")]
    reads = {label: [cell.reads for cell in found] for label, found in grid.rows}
    assert reads["dear"] == [f"50{NARROW}%"] * 3 and reads["oracle_topk"] == ["", f"60{NARROW}%", ""]
    assert f"at 256 tokens, 50{NARROW}% of bytes: at worst −20.0 points" in dict(grid.rows)["dear"][0].words
    assert cells["oracle_topk"] == [("hole", "not run"), ("worse", "−3.0"), ("hole", "not run")]
    assert next(iter(cells)) == "dear", "the method that holds most often comes first"


def test_equal_bytes_have_a_column_and_no_part_in_the_smallest_budget(lost: Results) -> None:
    ask = verdicts.board(lost, "m")[0]
    ((text, column),) = ask.equal_bytes.items()
    assert text == f"25{NARROW}% of bytes"
    assert (column["cheap"].level, column["cheap"].difference) == ("estimate", "0.0")
    assert (column["dear"].level, column["dear"].words) == ("hole", "no budget reads this")
    assert {label: every.headline for label, _, every in ask.rows}["cheap"] == "still worse at 256 tokens"
    assert verdicts.board(lost, "m")[2].equal_bytes == {}


def test_a_hole_made_by_memory_says_so_and_at_which_context() -> None:
    gone = {"status": "oom", "value": None, "diff_to_full": None}
    rows = [
        row("ask", "a", "256", 0.0, 0.1, context=8192),
        row("ask", "a", "256", 0.0, 0.1, **gone),
        row("ask", "a", "bytes=0.25", 0.0, 0.1, context=8192),
        row("ask", "a", "bytes=0.25", 0.0, 0.1, **gone),
        row("ask", "b", "256", 0.0, 0.1, context=8192),
    ]
    found = run([*rows, row("ask", "full", "full", 0.0, 1.0, context=8192)], {"suites": {"ask": {}}})
    (grid,) = verdicts.board(found, "m")
    spoken = {label: [v.headline for v in (*each, every)] for label, each, every in grid.rows}
    assert spoken["a"][1:] == ["out of memory", "out of memory at 32K"] and spoken["b"][1:] == ["not run", "not run"]
    assert next(iter(grid.equal_bytes.values()))["a"].headline == "out of memory at 32K"
    assert [cell.text for cell in dict(family_grid.family_grid(found, families(found)).rows)["a"]][1] == "out of memory"


def test_a_mark_tells_whether_the_score_is_of_the_parameters_that_were_timed(held: Results) -> None:
    both = timed(held, ("thrifty", "64", 16, 2.0), ("dear", "256", 16, 1.2), ("free_selection", "256", 16, 3.0))
    assert both.speed is not None
    both.speed.table.loc[both.speed.table["label"] == "dear", "params"] = '{"w": 1}'
    found = pareto._pairs(both, both.speed, "m")
    assert dict(zip(found["label"], found["same"], strict=True)) == {"thrifty": True, "dear": False}
    assert pareto._pairs(both, None, "m").empty


@pytest.mark.usefixtures("no_drawing")
def test_the_chart_is_at_the_context_asked_for_with_the_oracle_and_the_suite_where_methods_lose_most(
    lost: Results, tmp_path: Path
) -> None:
    steps = [("dear", "256", 1, 0.5), ("cheap", "256", 1, 2.0), ("dear", "256", 8, 4.0), ("cheap", "256", 8, 16.0)]
    results = timed(lost, *steps)
    writer = FigureWriter(tmp_path, looks(results.labels, results.labels, "full", oracle=ORACLE))
    chart = pareto.pareto(results, writer, "m", "", families(results), {"dear"})
    assert chart is not None and "32K tokens, 8 sequences" in chart.title
    drawn = pd.read_csv(tmp_path / chart.data)
    assert set(drawn["suite"]) == {"ask", "prose"} and set(drawn["method"]) == {"dear", "cheap", "oracle_topk"}
    assert drawn.loc[drawn["method"] == "oracle_topk", "ratio"].isna().all()
