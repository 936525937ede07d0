"""The front page names the nearest cells where no method is as good as Full, and draws quality against bytes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting import front, index, nearest, verdicts
from longdecode.reporting.fair_play import FairPlay
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.results import Results
from longdecode.reporting.speed.measured import Speed
from longdecode.reporting.wording import NARROW

EMPTY = pd.DataFrame()
UNITS = {"ask": "fraction", "prose": "nats/token", "long": "fraction"}


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


def run(rows: list[dict[str, Any]], config: dict[str, Any]) -> Results:
    full = [
        row(task, "full", "full", 0.0, 1.0) | {"diff_to_full": None} for task in dict.fromkeys(r["suite"] for r in rows)
    ]
    empty = pd.DataFrame()
    return Results("p", config, "", pd.DataFrame([*full, *rows]), empty, empty, [], frozenset({"prose"}), None)


@pytest.fixture
def scored() -> Results:
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
        ],
        {"suites": {"ask": {}, "prose": {}, "long": {}}},
    )  # fmt: skip


def test_the_nearest_cell_is_named_with_budget_bytes_difference_and_interval(scored: Results) -> None:
    said = front.sentences(scored, None, verdicts.board(scored, "m"), "m", {"dear", "cheap"}, "knobs tuned alike")
    first, *parts = said[0].split("\n")
    assert first.startswith("At 32K tokens of m (knobs tuned alike) no method stays within 2 points or 0.02 nats/token")
    assert "depends on the suite" in first and "none" not in said[0] and "itself" not in said[0]
    assert parts == [
        f"ask: cheap at 25{NARROW}% of bytes, 0.0 points [−10.0, +10.0];",
        f"prose: cheap at 25{NARROW}% of bytes, +0.100 nats/token [0.000, +0.200];",
        f"long (at 16K): dear at 256 tokens, 50{NARROW}% of bytes, −20.0 points [−30.0, −10.0].",
    ]
    first, *parts = said[1].split("\n")
    assert first == "Nearest at 32K tokens by budget, knobs tuned alike:"
    assert parts == [
        f"at 256 tokens: dear on ask, prose and long (at 16K) (50{NARROW}% of bytes);",
        f"at 25{NARROW}% of bytes: cheap on ask and prose.",
    ]
    assert nearest.leaders(scored, [(grid.topic, 32768) for grid in verdicts.board(scored, "m")[:2]]) == {
        "dear",
        "cheap",
    }


def test_equal_bytes_have_a_column_and_no_part_in_the_smallest_budget(scored: Results) -> None:
    ask = verdicts.board(scored, "m")[0]
    ((text, column),) = ask.equal_bytes.items()
    assert text == f"25{NARROW}% of bytes"
    assert (column["cheap"].level, column["cheap"].difference) == ("estimate", "0.0")
    assert (column["dear"].level, column["dear"].words) == ("hole", "no budget reads this")
    assert {label: every.headline for label, _, every in ask.rows}["cheap"] == "still worse at 256 tokens"
    assert verdicts.board(scored, "m")[2].equal_bytes == {}


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
    said = {label: [v.headline for v in (*each, every)] for label, each, every in grid.rows}
    assert said["a"][1:] == ["out of memory", "out of memory at 32K"] and said["b"][1:] == ["not run", "not run"]
    assert next(iter(grid.equal_bytes.values()))["a"].headline == "out of memory at 32K"


@pytest.mark.usefixtures("no_drawing")
def test_times_stand_on_the_first_screen_by_family_at_the_context_asked_for_and_at_every_batch(
    scored: Results, tmp_path: Path
) -> None:
    base = {"bench": "decode", "stage": "step", "status": "ok", "model": "m", "params": "{}", "device": "d"}
    timed = [
        base | {"subject": label, "label": label, "budget": "256", "context": context, "batch": batch,
                "bytes_min": 1.0, "ratio": ratio * batch, "ratio_low": ratio, "ratio_high": ratio}
        for label, ratio in (("dear", 0.5), ("cheap", 2.0), ("free_selection", 3.0))
        for context, batch in ((32768, 1), (32768, 8), (65536, 1))
    ]  # fmt: skip
    speed = Speed(pd.DataFrame(timed), EMPTY, EMPTY, EMPTY, ("dear", "cheap"))
    scored = dataclasses.replace(scored, speed=speed)
    grids = verdicts.board(scored, "m")
    said = front.sentences(scored, speed, grids, "m", {"dear"}, "tuned")[-1]
    assert said.startswith("A step of m at 32K tokens, batch 1 / 8 and a budget of 256 tokens, times as fast as Full: ")
    assert "cheap 2.00 / 16.00, dear 0.50 / 4.00; pages chosen for free, the limit of page lists, 3.00 / 24.0" in said
    writer = FigureWriter(tmp_path, looks(scored.labels, scored.labels, "full", oracle=nearest.ORACLE))
    families = [("look-ups", [grids[0], grids[2]]), ("text", [grids[1]])]
    chart = front.pareto(scored, writer, "m", "", families, {"dear"})
    assert chart is not None and chart.figure is not None and "lower right where the arrow" in chart.figure.caption
    drawn = pd.read_csv(tmp_path / chart.figure.data)
    # Of the first family the topic at that context, of the second its loss; the nearest is drawn, featured or not.
    assert set(drawn["suite"]) == {"ask", "prose"} and set(drawn["method"]) == {"dear", "cheap"}
    assert "context=32768" in chart.figure.same and "batch=8" in chart.figure.same


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize("named", [True, False])
def test_a_model_without_times_is_drawn_against_bytes_with_the_command_that_adds_times(
    scored: Results, tmp_path: Path, named: bool
) -> None:
    if named:
        scored.config["throughput"] = {"decode": {"m": {}}}  # type: ignore[index]
    labels = scored.labels
    writer = FigureWriter(tmp_path, looks(labels, labels, "full", oracle=nearest.ORACLE))
    families = [("look-ups", verdicts.board(scored, "m")[::2]), ("text", verdicts.board(scored, "m")[1:2])]
    assert front.pareto(scored, writer, "m", "", families, {"dear"}) is None
    chart = front.against_bytes(scored, writer, "m", "", families, {"dear"})
    assert chart.figure is not None and "bytes, not time" in chart.figure.title and "32K" in chart.figure.title
    drawn = pd.read_csv(tmp_path / chart.figure.data)
    assert set(drawn["suite"]) == {"ask", "prose"} and "context=32768" in chart.figure.same
    assert set(drawn["method"]) == {"full", "oracle_topk", "dear", "cheap"}
    assert drawn.query("method == 'cheap' and suite == 'ask'")["bytes_share"].tolist() == pytest.approx([0.1, 0.25])
    assert "snakemake --cores 8 times --config profile=p" in chart.missing
    assert ("throughput.decode" in chart.missing) != named


def test_roles_learned_on_the_generator_that_tests_them_are_said_to_flatter() -> None:
    rows = [("a", "look-ups (passkey)", "passkey", "ruler"), ("b", "look-ups (passkey)", "passkey", "ruler")]
    play = FairPlay([], [], [*rows, ("c", "HotpotQA (hotpotqa)", "none", "ruler")], [], [], [])
    words = index.role_words(play)
    assert words.startswith("Head roles of a and b were learned on look-ups (passkey), the family of passkey: those")
    assert " c " not in words and index.role_words(FairPlay([], [], [rows[0]], [], [], [])).endswith("flatter it.")


def test_a_run_without_knobs_is_not_called_untuned() -> None:
    assert FairPlay([], [], [], [], [], []).short == "no knobs to tune"
