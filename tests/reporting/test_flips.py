"""Flips: answers lost and won against Full, by cell and by suite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from longdecode.reporting.flips import Flips, count_flips


def record(label: str, task: str, parts: list[float] | None, index: int = 0, **more: Any) -> Any:
    base = {
        "model": "m", "suite": "s", "task": task, "method": label, "variant": label, "context": 2048, "seed": 0,
        "budget": "full" if label == "full" else "0.1", "sample_index": index, "status": "ok", "unit": "fraction",
        "parts": parts, "score": None if parts is None else sum(parts) / len(parts),
    }  # fmt: skip
    return SimpleNamespace(**base | more)


def test_answers_are_paired_one_by_one() -> None:
    records = [
        record("full", "one", [1, 1, 0]), record("quest", "one", [1, 0, 1]),
        record("full", "one", [1], 1), record("quest", "one", [0], 1),
        record("full", "two", [1, 1]), record("quest", "two", [1, 1]),
    ]  # fmt: skip
    found = count_flips(records)
    place = ("m", "s", "one", "quest", "0.1", 2048)
    assert found[place] == Flips(lost=2, won=1, answers=4)
    assert found[("m", "s", "all", *place[3:])] == Flips(2, 1, 6)
    assert found[place].words == "2 of 4 answers lost, 1 won"


def test_a_perfect_method_prints_how_many_answers_it_kept() -> None:
    records = [record(label, "one", [1.0], i) for label in ("full", "quest") for i in range(96)]
    (flips, _) = count_flips(records).values()
    assert flips.words == "0 of 96 answers lost"


def test_a_score_without_parts_is_one_answer_where_all_of_its_task_are_right_or_wrong() -> None:
    right = [record(label, "one", None, i, score=1.0) for label in ("full", "quest") for i in range(3)]
    lost = [record("full", "one", None, 3, score=1.0), record("quest", "one", None, 3, score=0.0)]
    place = ("m", "s", "one", "quest", "0.1", 2048)
    assert count_flips([*right, *lost])[place].words == "1 of 4 answers lost"
    overlap = [record(label, "one", None, 4, score=0.4) for label in ("full", "quest")]
    assert not count_flips([*right, *lost, *overlap]), "an overlap that happens to be 0 or 1 is no answer"


def test_losses_holes_and_shares_have_no_flips() -> None:
    assert not count_flips([record("quest", "one", [1.0])]), "Full is not there"
    both = [record(label, "one", [0.5, 1.2], unit="nats/byte") for label in ("full", "quest")]
    assert not count_flips(both)
    failed = record("quest", "one", None, -1, status="oom")
    assert not count_flips([record("full", "one", [1.0]), failed])
