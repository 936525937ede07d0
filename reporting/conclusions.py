"""Say which differences of the miniatures hold on a real model, each with its number and interval there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from longdecode.evals.stats import generator
from longdecode.reporting.tables import CEILING
from longdecode.reporting.wording import (
    budget,
    budget_order,
    difference_unit,
    gap,
    gap_interval,
    listing,
    plural,
    short_tokens,
)

RESAMPLES = 1000
_MOST_NAMED = 4

Place = tuple[str, int]
"""Model and context."""
Scores = dict[str, NDArray[np.float64]]
"""By label, the mean score of each problem ``[n]``; problems are those that all labels share."""
Outcome = Literal["reverses", "undecided", "ceiling", "holds"]


@dataclass(frozen=True, slots=True)
class Held:
    """A difference as it comes out at one place of another model."""

    place: Place
    outcome: Outcome
    value: float
    numbers: str

    @property
    def where(self) -> str:
        """The place as pages name it."""
        return f"{self.place[0]} at {short_tokens(self.place[1])}"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One difference that every miniature shows at its longest context, and what it comes to on the real models."""

    suite: str
    budget: str
    better: str
    worse: str
    unit: str
    home: str
    there: tuple[Held, ...]

    @property
    def outcome(self) -> Outcome:
        """``holds`` where it does at every place that can tell; else the worst that any place says."""
        found = [held.outcome for held in self.there]
        if "reverses" in found:
            return "reverses"
        return "undecided" if "undecided" in found else "holds" if "holds" in found else "ceiling"

    @property
    def weakest(self) -> Held:
        """The place where least of it is left."""
        return min(self.there, key=lambda held: held.value)

    @property
    def words(self) -> str:
        """The difference and its weakest number."""
        held = self.weakest
        return (
            f"{self.better} over {self.worse} on {self.suite} at {budget(self.budget)}: {held.numbers} "
            f"{difference_unit(self.unit)} on {held.where}"
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence about two families of methods; ``holds`` where all of their differences do."""

    text: str
    holds: bool
    details: list[str]


def conclude(
    table: Mapping[tuple[str, str], Mapping[Place, Scores]],
    instruments: Collection[str],
    units: Mapping[str, str],
    confidence: float,
) -> list[Conclusion]:
    """Return every paired difference that all miniatures show alike, on the suites and budgets that a real model ran.

    Args:
        table: scores by suite and budget, more is better.
        instruments: models that are miniatures.
        units: of each suite's scores.
    """
    found = []
    for (suite, text), places in table.items():
        homes = list({place[0]: place for place in sorted(places) if place[0] in instruments}.values())
        others = sorted(place for place in places if place[0] not in instruments)
        shared = set.intersection(*(set(places[home]) for home in homes)) if homes and others else set()
        for pair in combinations(sorted(shared), 2):
            shown = [paired(places[home], *pair, confidence) for home in homes]
            signs = {(low > 0) - (high < 0) for _, low, high in shown}
            if len(signs) > 1 or 0 in signs:
                continue
            better, worse = pair if signs == {1} else pair[::-1]
            there = tuple(
                _held(places[place], place, better, worse, units[suite], confidence)
                for place in others
                if {better, worse} <= places[place].keys()
            )
            if there:
                least = min(shown, key=lambda found: abs(found[0]))
                home = _numbers(*(least if signs == {1} else (-least[0], -least[2], -least[1])), units[suite])
                found.append(Conclusion(suite, text, better, worse, units[suite], home, there))
    return found


def state(conclusions: Sequence[Conclusion], families: Mapping[str, str]) -> list[Statement]:
    """Gather conclusions by the families of their methods, those that hold and rest on most differences first.

    Args:
        families: label to the name of its family, in plain words.
    """
    groups: dict[tuple[str, str], list[Conclusion]] = {}
    for found in conclusions:
        better, worse = (families.get(label, label) for label in (found.better, found.worse))
        pair = (better, worse[0].lower() + worse[1:]) if better != worse else (found.better, found.worse)
        groups.setdefault(pair, []).append(found)
    said = [_statement(*pair, found) for pair, found in sorted(groups.items(), key=lambda entry: -len(entry[1]))]
    return sorted(said, key=lambda statement: not statement.holds)


def _statement(better: str, worse: str, found: Sequence[Conclusion]) -> Statement:
    kept = [c for c in found if c.outcome in ("holds", "ceiling")]
    lost = sorted((c for c in found if c not in kept), key=lambda c: (c.outcome, c.weakest.value))
    suites = listing(sorted({c.suite for c in found}))
    above, below = ({side: sorted({getattr(c, side) for c in found}) for side in ("better", "worse")}).values()
    text = f"{_with_members(better, above)} above {_with_members(worse, below)}, on {suites}"
    if not lost:
        least = min(found, key=lambda c: c.weakest.value)
        held = {1: "the one difference holds", 2: "both differences hold"}.get(
            len(found), f"all {len(found)} differences hold"
        )
        return Statement(f"{text}: {held}. Smallest: {least.words}.", True, [])
    reversed_ = sum(c.outcome == "reverses" for c in lost)
    counts = f"{len(kept)} of {len(found)} differences hold" if len(found) > 1 else "the one difference does not hold"
    turned = (
        f", {reversed_} {'reverses' if reversed_ == 1 else 'reverse'} somewhere" if reversed_ and len(found) > 1 else ""
    )
    rest = [f"{'Reverses' if c.outcome == 'reverses' else 'Cannot be told'}: {c.words}." for c in lost[:_MOST_NAMED]]
    if len(lost) > _MOST_NAMED:
        rest.append(f"And {len(lost) - _MOST_NAMED} more, in the table below.")
    return Statement(f"{text}: {counts}{turned}.", False, rest)


def _with_members(name: str, members: Sequence[str]) -> str:
    return name if list(members) == [name] else f"{name} ({', '.join(members)})"


def summary(conclusions: Sequence[Conclusion], homes: int) -> Iterator[str]:
    """Yield how many of the miniatures' differences hold on each real model."""
    models = dict.fromkeys(held.place[0] for c in conclusions for held in c.there)
    for model in models:
        mine = [c for c in conclusions if any(held.place[0] == model for held in c.there)]
        count = {kind: sum(c.outcome == kind for c in mine) for kind in ("holds", "reverses", "undecided", "ceiling")}
        budgets = " and at ".join(budget(text) for text in sorted({c.budget for c in mine}, key=budget_order))
        who = "The miniature shows" if homes == 1 else f"All {homes} miniatures show"
        said = [
            f"{who} {plural(len(mine), 'difference')} between two methods, at {budgets}",
            f" On {model} {count['holds']} of them hold at every context",
            f" {count['reverses']} reverse at one or more",
            f" {count['undecided']} cannot be told at one or more",
        ]
        ceiling = f", {count['ceiling']} are at the ceiling" if count["ceiling"] else ""
        yield f"{said[0]}.{','.join(said[1:])}{ceiling}."


def paired(scores: Scores, one: str, other: str, confidence: float) -> tuple[float, float, float]:
    """Return the paired difference of two methods with its bootstrap interval."""
    gaps = scores[one] - scores[other]
    rng = generator(0, "contrast", one, other)
    draws = gaps[rng.integers(0, len(gaps), (RESAMPLES, len(gaps)))].mean(axis=1)
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(gaps.mean()), float(low), float(high)


def _held(scores: Scores, place: Place, better: str, worse: str, unit: str, confidence: float) -> Held:
    value, low, high = paired(scores, better, worse, confidence)
    outcome: Outcome = "holds" if low > 0 else "reverses" if high < 0 else "undecided"
    if min(float(scores[better].mean()), float(scores[worse].mean())) > CEILING:
        outcome = "ceiling"
    return Held(place, outcome, value, _numbers(value, low, high, unit))


def _numbers(value: float, low: float, high: float, unit: str) -> str:
    return f"{gap(value, unit)} {gap_interval(low, high, unit)}"
