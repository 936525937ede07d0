"""The front page's chart pairs a score with the time of the same configuration, and with no other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd

from longdecode.reporting import front, instruments
from longdecode.reporting.results import Topic
from longdecode.reporting.verdicts import Grid, Level, Verdict

TOPIC = Topic("m", "s", "t", "accuracy", "fraction", True, "generated")


def score(label: str, budget: str, params: str = "{}", **more: Any) -> dict[str, Any]:
    return {"model": "m", "suite": "s", "task": "t", "method": label, "budget": budget, "context": 4096, "batch": 8,
            "params": params, "status": "ok", "value": 0.9} | more  # fmt: skip


def step(label: str, budget: str, params: str = "{}", **more: Any) -> dict[str, Any]:
    return {"bench": "decode", "stage": "step", "status": "ok", "model": "m", "label": label, "subject": label,
            "budget": budget, "context": 4096, "batch": 16, "params": params, "ratio": 1.5, "ratio_low": 1.4,
            "ratio_high": 1.6} | more  # fmt: skip


def test_only_a_configuration_that_was_scored_as_it_was_timed_has_a_mark() -> None:
    scores = [
        score("a", "0.1"),
        score("a", "0.2"),
        score("b", "0.1", '{"w": 1}'),
        score("c", "bytes=0.1"),
        score("d", "0.1"),
    ]
    steps = [
        step("a", "0.1"),
        step("b", "0.1"),
        step("c", "bytes=0.1"),
        step("d", "0.1", context=8192),
        step("free_selection", "0.1"),
    ]
    found = front._pairs(SimpleNamespace(summary=pd.DataFrame(scores)), SimpleNamespace(table=pd.DataFrame(steps)), "m")  # type: ignore[arg-type]
    assert found[["label", "budget", "batch", "ratio"]].to_numpy().tolist() == [["a", "0.1", 16, 1.5]]
    assert front._pairs(SimpleNamespace(summary=pd.DataFrame(scores)), None, "m").empty  # type: ignore[arg-type]


def verdict(label: str, context: int, level: str, budget: str, read: float) -> Verdict:
    return Verdict(label, TOPIC, context, level, budget, (read, read))  # type: ignore[arg-type]


def test_sentences_answer_for_the_asked_context_name_bytes_and_what_fails() -> None:
    rows = [
        ("good", [verdict("good", 2048, "shown", "20 %", 0.3), verdict("good", 32768, "shown", "5 %", 0.1)]),
        ("dear", [verdict("dear", 2048, "shown", "10 %", 0.5), verdict("dear", 32768, "estimate", "10 %", 0.5)]),
        ("bad", [verdict("bad", 2048, "worse", "50 %", 0.5), verdict("bad", 32768, "worse", "50 %", 0.5)]),
    ]
    grid = Grid(TOPIC, [2048, 32768], ["", ""], [(label, each, each[0]) for label, each in rows])
    first, second = front.sentences(None, None, [grid], "m", {"good", "dear", "bad"}, "tuned")  # type: ignore[arg-type]
    assert "at 32K tokens of m, within 2 points of Full (tuned)" in first
    assert (
        first.index("good from a budget of 5 % (reads 10") < first.index("dear from a budget of 10 %")
        and "bad" not in first
    )
    assert (
        second
        == "Still worse than Full at the largest budget: bad (on t); at 2K tokens a larger share is needed by good."
    )


def test_sentences_point_at_suites_and_methods_that_they_do_not_speak_of() -> None:
    def rows(context: int) -> list[tuple[str, list[Verdict], Verdict]]:
        levels: dict[str, Level] = {"good": "shown", "bad": "worse", "plain": "shown"}
        found = {label: verdict(label, context, level, "5 %", 0.1) for label, level in levels.items()}
        return [(label, [each], each) for label, each in found.items()]

    long = Grid(TOPIC, [8192], [""], rows(8192))
    short = Grid(replace(TOPIC, task="chains"), [2048], [""], rows(2048))
    first, second = front.sentences(None, None, [long, short], "m", {"good", "bad"}, "tuned")  # type: ignore[arg-type]
    assert first.endswith("The grid below has chains too, scored at other contexts.") and "plain" not in first
    assert second == "Still worse than Full at the largest budget: bad (on t); the grid below judges 1 further method."


def test_sentences_say_how_many_methods_they_leave_out() -> None:
    each = {f"m{n}": [verdict(f"m{n}", 2048, "worse", "50 %", 0.5)] for n in range(6)}
    each["good"] = [verdict("good", 2048, "shown", "50 %", 0.5)]
    grid = Grid(TOPIC, [2048], [""], [(label, found, found[0]) for label, found in each.items()])
    _, said = front.sentences(None, None, [grid], "m", set(each), "tuned")  # type: ignore[arg-type]
    assert said.endswith("m3 (on t); 2 more.") and "m4" not in said


def test_several_miniatures_are_one_instrument_with_a_spread() -> None:
    rows = [
        score("a", "0.1", model=model, diff_to_full=gap, unit="fraction")
        for model, gap in (("m1", -0.1), ("m2", 0.02), ("m3", -0.04))
    ]
    results = SimpleNamespace(summary=pd.DataFrame(rows), topics=lambda model: [TOPIC])
    (row,) = instruments.spread(results, ["m1", "m2", "m3"], ["a"])  # type: ignore[arg-type]
    assert row[2:] == ("a", "10\u202f%", "\u22124.0", "\u221210.0", "+2.0", "points", "3")
    assert instruments.spread(results, ["m1"], ["a"]) == []  # type: ignore[arg-type]
