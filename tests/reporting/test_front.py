"""The front page answers for one context from records, and says where score and time are not of one configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from longdecode.evals.fairness import Standing
from longdecode.reporting import family_grid, front, index, instruments, nearest, pareto, verdicts
from longdecode.reporting.dependence import Dependence, TooFew
from longdecode.reporting.fair_play import FairPlay
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.results import Results
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


def said(results: Results) -> list[tuple[str, str]]:
    found = front.sentences(results, "m", families(results), "knobs tuned alike")
    return [(each.lead, each.text) for each in found]


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


def test_the_first_sentence_names_the_method_that_holds_for_the_fewest_bytes(held: Results) -> None:
    (lead, text), _, (_, by_family) = said(held)
    assert lead == "For 32K tokens of m, use thrifty from a budget of 64 tokens."
    assert text.startswith(
        f"It reads 10{NARROW}% of Full's bytes, the fewest that stay within 2 points of Full on ask (at"
    )
    assert "(at worst −1.5 points [−1.0, +1.0] on ask; knobs tuned alike)" in text
    assert text.endswith(f"Next by bytes: dear from 256 tokens (50{NARROW}%, by the estimate).")
    assert by_family.endswith("The other 1 method: on no family.")


def test_a_method_that_too_few_samples_speak_for_is_not_recommended() -> None:
    """No answer lost, but an interval so wide that no difference could have been shown."""
    wide = {"diff_low": -0.3, "diff_high": 0.3, "n": 4}
    rows = [row("ask", "thrifty", text, 0.0, 0.1, **wide) for text in ("64", "256")]
    depends = Dependence(too_few={("m", "ask", "ask", 32768): TooFew(4, 0.3, 132)})
    (lead, _), _, (_, by_family) = said(dataclasses.replace(run(rows), dependence=depends))
    assert f"thrifty from 64 tokens (10{NARROW}%, too few samples to tell)" in by_family
    assert lead == (
        "For 32K tokens of m, thrifty is nearest, from a budget of 64 tokens; too few samples to tell on ask."
    )


def test_where_all_budgets_are_in_bytes_no_method_is_called_worse_for_it() -> None:
    (lead, _), *_ = said(run([row("ask", "cheap", "bytes=0.25", 0.0, 0.25)]))
    assert lead == "At 32K tokens of m every budget is in bytes; the nearest is cheap at 64 tokens."


def test_a_context_at_which_the_method_needs_more_is_named(held: Results) -> None:
    sure = {"diff_low": -0.01, "diff_high": 0.01, "context": 8192}
    more = [row("ask", "full", "full", 0.0, 1.0, diff_to_full=None, context=8192)]
    more += [row("ask", "thrifty", "64", -0.2, 0.1, context=8192), row("ask", "thrifty", "256", 0.0, 0.3, **sure)]
    both = dataclasses.replace(held, summary=pd.concat([held.summary, pd.DataFrame(more)], ignore_index=True))
    assert said(both)[0][1].endswith("Elsewhere thrifty takes 256 tokens at 8K tokens.")


def test_where_no_method_holds_the_nearest_is_named_with_differences_intervals_and_a_cheaper_one(lost: Results) -> None:
    (lead, text), _, (_, by_family), (_, note) = said(lost)
    assert lead == (
        "At 32K tokens of m no method is within 2 points or 0.02 nats/token of Full on every suite; the nearest is "
        "cheap at 64 tokens."
    )
    assert text.startswith(
        f"It reads 25{NARROW}% of Full's bytes (knobs tuned alike): +0.100 nats/token [0.000, +0.200]"
    )
    assert "by the estimate within the margin on ask" in text
    assert "Text: none, the nearest cheap" in by_family or "text: none, the nearest cheap" in by_family
    assert f"dear from 256 tokens (50{NARROW}%, by the estimate)" in by_family
    assert "oracle" not in lead + text + by_family and "long was scored at other contexts only" in note


def test_a_step_that_was_timed_as_scored_says_so_and_another_budget_says_that_it_differs(
    held: Results, lost: Results
) -> None:
    same = timed(held, ("thrifty", "64", 1, 2.0), ("dear", "256", 1, 1.2), ("bad", "64", 1, 3.0))
    _, (lead, text), (_, fails) = said(same)
    assert lead == "Timed as scored." and "thrifty 2.00; dear 1.20; the fastest, at 64 tokens, bad 3.00" in text
    assert "The fastest, bad, ends at best (256 tokens" in fails and "−80.0 points" in fails
    other = timed(lost, ("dear", "256", 1, 0.5), ("cheap", "256", 1, 2.0), ("free_selection", "256", 1, 3.0))
    _, (lead, text), *_ = said(other)
    assert lead == "Scored and timed budgets differ: times are at 256 tokens only."
    assert "cheap 2.00" in text and "read lists of pages): 3.00" in text
    assert "Quality at that budget: cheap at worst −50.0 points [−60.0, −40.0] on ask" in text


def test_the_budget_of_most_methods_leads_and_the_others_are_named(lost: Results) -> None:
    steps = [("cheap", "256", 1, 2.0), ("dear", "256", 1, 0.5), ("dear", "8192", 1, 0.4)]
    results = timed(lost, *steps, ("cheap", "128", 1, 3.0))
    _, (lead, text), *_ = said(results)
    assert lead == (
        "Scored and timed budgets differ: times are at 256 tokens, of most methods; 128 tokens and 8,192 tokens too."
    )
    assert "cheap 2.00" in text and "3.00" not in text


def test_a_budget_in_bytes_is_timed_at_the_tokens_that_it_came_to(lost: Results) -> None:
    """``cheap`` is named at a quarter of the bytes, which is 64 tokens; most methods were timed at 256."""
    steps = [("cheap", "64", 1, 3.0), ("cheap", "256", 1, 2.0), ("dear", "256", 1, 4.0)]
    results = timed(lost, *steps, ("free_selection", "256", 1, 5.0))
    _, (lead, text), *_ = said(results)
    assert (
        lead == "Timed as scored."
        and "cheap, at 64 tokens 3.00; cheap, at 256 tokens 2.00; the fastest, at 256 tokens, dear 4.00." in text
    )
    assert "read lists of pages, at 256 tokens): 5.00" in text
    drawn = pareto._pairs(results, results.speed, "m").query("suite == 'ask' and label == 'cheap'")
    assert dict(zip(drawn["budget"], drawn["ratio"], strict=True)) == {"64": 3.0, "256": 2.0}


def test_times_of_another_model_are_not_passed_off_as_the_scored_ones(held: Results) -> None:
    both = timed(held, ("thrifty", "4096", 1, 1.5), model="large", context=131072, bytes_min=9.0)
    _, (lead, text), _ = said(both)
    assert lead == (
        "Scored and timed models differ: times are of large, not scored, at 128K tokens with a budget of 4,096 tokens."
    )
    assert text.endswith("thrifty 1.50.")
    own = timed(held, ("thrifty", "64", 16, 1.1), ("dear", "64", 16, 9.0))
    assert own.speed is not None and both.speed is not None
    table = pd.concat([own.speed.table, both.speed.table], ignore_index=True)
    _, (_, text), _ = said(dataclasses.replace(both, speed=Speed(table, EMPTY, EMPTY, EMPTY, ("dear", "cheap"))))
    assert text.endswith("thrifty 1.50. m itself, timed as scored, batch 16: thrifty 1.10.")
    _, (lead, _), _ = said(held)
    assert lead == "No time was measured in this run."


def test_a_method_whose_gate_failed_is_judged_nowhere_and_named(held: Results, tmp_path: Path) -> None:
    steps = [("thrifty", "64", 1, 2.0), ("dear", "256", 1, 1.2)]
    results = timed(held, *steps)
    assert results.speed is not None
    table = results.speed.table
    table.loc[table["label"] == "thrifty", "status"] = "failed_gate"
    assert results.failed("m") == {"thrifty"}
    spoken = said(results)
    assert spoken[0][0] == "For 32K tokens of m, use dear from a budget of 256 tokens."
    assert spoken[-1][1] == "thrifty failed the correctness gate and is judged nowhere."
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
    writer = FigureWriter(tmp_path, looks(results.labels, results.labels, "full", oracle=nearest.ORACLE))
    chart = pareto.pareto(results, writer, "m", "", families(results), {"dear"})
    assert chart is not None and chart.figure is not None and "32K tokens, 8 sequences" in chart.figure.title
    drawn = pd.read_csv(tmp_path / chart.figure.data)
    assert set(drawn["suite"]) == {"ask", "prose"} and set(drawn["method"]) == {"dear", "cheap", "oracle_topk"}
    assert drawn.loc[drawn["method"] == "oracle_topk", "ratio"].isna().all()


@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize("named", [True, False])
def test_a_model_without_times_is_drawn_against_bytes_with_the_command_that_adds_times(
    lost: Results, tmp_path: Path, named: bool
) -> None:
    if named:
        lost.config["throughput"] = {"decode": {"m": {}}}  # type: ignore[index]
    labels = lost.labels
    writer = FigureWriter(tmp_path, looks(labels, labels, "full", oracle=nearest.ORACLE))
    assert pareto.pareto(lost, writer, "m", "", families(lost), {"dear"}) is None
    chart = pareto.against_bytes(lost, writer, "m", "", families(lost), {"dear"})
    assert chart.figure is not None and "bytes, not time" in chart.figure.title and "32K" in chart.figure.title
    drawn = pd.read_csv(tmp_path / chart.figure.data)
    assert set(drawn["suite"]) == {"ask", "prose"} and "context=32768" in chart.figure.same
    assert set(drawn["method"]) == {"full", "oracle_topk", "dear", "cheap"}
    assert drawn.query("method == 'cheap' and suite == 'ask'")["bytes_share"].tolist() == pytest.approx([0.1, 0.25])
    assert "times of m, so no method's speed is known" in chart.missing
    assert "snakemake --cores 8 times --configfile FILE" in chart.missing
    assert ("throughput.decode" in chart.missing) != named


def test_roles_learned_on_the_generator_that_tests_them_are_said_to_flatter() -> None:
    rows = [("a", "look-ups (passkey)", "passkey", "ruler"), ("b", "look-ups (passkey)", "passkey", "ruler")]
    play = FairPlay([], [], [*rows, ("c", "HotpotQA (hotpotqa)", "none", "ruler")], [], [], [])
    words = index.role_words(play)
    assert words.startswith("Head roles of a and b were learned on look-ups (passkey), the family of passkey: those")
    assert " c " not in words and index.role_words(FairPlay([], [], [rows[0]], [], [], [])).endswith("flatter it.")


def test_a_run_says_plainly_what_was_tuned() -> None:
    def short(*kinds: Any) -> str:
        standings = [Standing(f"m{place}", "m", kind) for place, kind in enumerate(kinds)]
        return FairPlay([], standings, [], [], [], []).short

    assert short() == "no knobs to tune"
    assert short("tuned", "tuned") == "knobs tuned alike"
    assert short("untuned", "untuned") == "nothing was tuned for this model: m0 and m1 at default knobs"
    assert short("tuned", "untuned") == "knobs tuned alike; m1 not tuned, at default knobs"
    assert short("by hand", "untuned").startswith("nothing was tuned by the protocol; m0 set by hand; m1 not tuned")


def test_several_miniatures_are_one_instrument_with_a_spread() -> None:
    rows = [row("ask", "a", "0.1", gap, 0.1, model=model) for model, gap in (("m1", -0.1), ("m2", 0.02), ("m3", -0.04))]
    topic = run([*rows[:1], row("ask", "a", "0.1", 0.0, 0.1)]).topics("m")[0]
    results = SimpleNamespace(summary=pd.DataFrame(rows), topics=lambda model: [topic])
    (found,) = instruments.spread(results, ["m1", "m2", "m3"], ["a"])  # type: ignore[arg-type]
    assert found[2:] == ("a", "10\u202f%", "\u22124.0", "\u221210.0", "+2.0", "points", "3")
    assert instruments.spread(results, ["m1"], ["a"]) == []  # type: ignore[arg-type]
