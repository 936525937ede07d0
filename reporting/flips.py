"""Flips: answers that a method loses and wins against Full on the same prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
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


def count_flips(records: Iterable[Record]) -> dict[Place, Flips]:
    """Count the flips of every cell whose answers are right or wrong, and of every suite over its tasks.

    A score without parts is one answer, where all of its task are right or wrong.
    """
    answers: dict[tuple[Place, str], dict[tuple[int, int], Sequence[float]]] = defaultdict(dict)
    marked = (r for r in records if r.status == "ok" and r.unit == "fraction" and r.score is not None)
    scored = [(r, r.parts or [float(r.score or 0)]) for r in marked]
    shares = {(r.model, r.task) for r, _ in scored if not r.parts and r.score not in (0.0, 1.0)}
    for r, parts in scored:
        if set(parts) <= {0.0, 1.0} and (r.parts or (r.model, r.task) not in shares):
            place = (r.model, r.suite, r.task, r.label, r.budget, r.context)
            answers[place, r.method][r.seed, r.sample_index] = parts
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
