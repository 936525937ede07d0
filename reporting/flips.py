"""Flips: answers that a method loses and wins against Full on the same prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from longdecode.evals.records import Record
from longdecode.evals.summary import ALL_TASKS, REFERENCE_METHOD

Place = tuple[str, str, str, str, str, int]
"""Model, suite, task (or ``all``), label, budget, context."""


@dataclass(frozen=True, slots=True)
class Flips:
    """Answers right under Full alone (``lost``) and under the method alone (``won``), of those that both gave."""

    lost: int = 0
    won: int = 0
    answers: int = 0

    def __add__(self, other: Flips) -> Flips:
        return Flips(self.lost + other.lost, self.won + other.won, self.answers + other.answers)

    @property
    def words(self) -> str:
        """``0 of 96 answers lost``, and how many were won where there are any."""
        won = f", {self.won:,} won" if self.won else ""
        return f"{self.lost:,} of {self.answers:,} answers lost{won}"


def degrees(records: Iterable[Record]) -> frozenset[tuple[str, str]]:
    """Return models and tasks whose scores without parts are degrees, such as an overlap that may happen to be 0."""
    scored = (r for r in records if r.status == "ok" and r.unit == "fraction" and not r.parts)
    return frozenset((r.model, r.task) for r in scored if r.score not in (None, 0.0, 1.0))


def answers_of(record: Record, shares: Collection[tuple[str, str]]) -> Sequence[float]:
    """Return 1 for each right answer of a sample and 0 for each wrong one; empty where its score is a degree.

    A score without parts is one answer, where all of its task are right or wrong.

    Args:
        shares: ``degrees`` of the run.
    """
    if record.status != "ok" or record.unit != "fraction" or record.score is None:
        return ()
    if not record.parts and (record.model, record.task) in shares:
        return ()
    marks = record.parts or (record.score,)
    return marks if set(marks) <= {0.0, 1.0} else ()


def count_flips(records: Iterable[Record]) -> dict[Place, Flips]:
    """Count the flips of every cell whose answers are right or wrong, and of every suite over its tasks."""
    known = list(records)
    shares = degrees(known)
    answers: dict[tuple[Place, str], dict[tuple[int, int], Sequence[float]]] = defaultdict(dict)
    for r in known:
        if marks := answers_of(r, shares):
            place = (r.model, r.suite, r.task, r.variant, r.budget, r.context)
            answers[place, r.method][r.seed, r.sample_index] = marks
    full = {(p[0], p[1], p[2], p[5]): found for (p, method), found in answers.items() if method == REFERENCE_METHOD}
    counted: dict[Place, Flips] = {}
    for (place, method), mine in answers.items():
        theirs = full.get((*place[:3], place[5]))
        if theirs is None or method == REFERENCE_METHOD:
            continue
        both = [key for key in mine if key in theirs and len(mine[key]) == len(theirs[key])]
        pairs = [pair for key in both for pair in zip(mine[key], theirs[key], strict=True)]
        flips = Flips(sum(a < b for a, b in pairs), sum(a > b for a, b in pairs), len(pairs))
        whole = (*place[:2], ALL_TASKS, *place[3:])
        counted[place] = flips
        counted[whole] = counted.get(whole, Flips()) + flips
    return counted
