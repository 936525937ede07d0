"""The front page names the nearest cells where no method is as good as Full, and draws quality against bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting import front, index, nearest, verdicts
from longdecode.reporting.fair_play import FairPlay
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.results import Results
from longdecode.reporting.wording import NARROW

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
    assert front.pareto(scored, None, writer, "m", "") is None
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
