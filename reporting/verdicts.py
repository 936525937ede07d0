"""Verdicts: the smallest budget at which a method stays within a margin of Full, at each context and at all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd

from longdecode.evals.budgets import bytes_share
from longdecode.reporting.dependence import TooFew
from longdecode.reporting.flips import Flips
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import REFERENCE_METHOD, Results, Topic
from longdecode.reporting.solved import MARGIN, full_does
from longdecode.reporting.wording import (
    NARROW,
    budget,
    budget_order,
    difference_unit,
    gap,
    gap_interval,
    is_fraction,
    listing,
    number,
    score,
    short_tokens,
    with_unit,
)

FAILED = "failed its correctness gate"
"""Stands for every verdict of a method that does not compute what its definition says."""

Level = Literal["shown", "estimate", "few", "worse", "alone", "hole", "unsolved"]
WITHIN: Sequence[Level] = ("few", "estimate", "shown")
"""Levels of a difference within the margin."""
_WEAKEST_FIRST: Sequence[Level] = ("hole", "alone", "worse", *WITHIN)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One method on one topic at one context, or at every context (``context`` is ``None``).

    ``budget`` is the smallest budget tried from which on the difference to Full stays within the margin at every larger
    one; without such a budget it is the largest tried and ``level`` is ``worse``. The other levels speak of that budget
    alone: ``shown`` where the worse end of the interval is within the margin, too, ``estimate`` where it is not, be it
    because answers to one prompt depend on each other; ``few`` where so few samples could not show a difference of 0;
    ``alone`` where Full did not run, ``hole`` where the method did not, ``unsolved`` where Full answers less than
    ``SOLVED``. ``read`` holds the least and the most bytes read there, selector included, as a share of Full's.
    """

    label: str
    topic: Topic
    context: int | None
    level: Level
    budget: str = ""
    read: tuple[float, float] | None = None
    difference: str = ""
    bounds: str = ""
    value: str = ""
    words: str = ""
    flips: str = ""

    @property
    def headline(self) -> str:
        """The words of the table's cell."""
        if self.level == "unsolved":
            return "not judged: Full fails"
        fixed = {
            "hole": self.words or "not run",
            "alone": "no Full to compare with",
            "worse": f"still worse at {self.budget}",
            "few": f"from {self.budget}: n too small",
        }
        return fixed.get(self.level, f"from {self.budget}")

    @property
    def reads(self) -> str:
        """Bytes read in words; empty where they are not known."""
        if self.read is None:
            return ""
        low, high = (number(100 * share, 0) for share in self.read)
        return f"reads {low if low == high else f'{low} to {high}'}{NARROW}%"


@dataclass(frozen=True, slots=True)
class Grid:
    """The verdicts of one topic: a row a method, a column a context, and the verdict over all contexts.

    ``equal_bytes`` holds a column for each budget in bytes, by label: such a budget is as large for every method, so it
    has a verdict of its own and takes no part in the search for the smallest budget. ``too_few`` says of each context
    that its samples are too few for any verdict but a loss.
    """

    topic: Topic
    contexts: list[int]
    full: list[str]
    rows: list[tuple[str, list[Verdict], Verdict]]
    equal_bytes: Mapping[str, Mapping[str, Verdict]] = field(default_factory=dict)
    too_few: Sequence[str] = ()

    @property
    def solved(self) -> bool:
        """True where some verdict was reached: Full does the topic at some context, or did not run."""
        return any(every.level != "unsolved" for _, _, every in self.rows)

    @property
    def run(self) -> bool:
        """False where none of its methods was run, at any context or budget."""
        by_bytes = (verdict for column in self.equal_bytes.values() for verdict in column.values())
        found = [*(verdict for _, each, every in self.rows for verdict in (*each, every)), *by_bytes]
        return any(verdict.level != "hole" or verdict.words for verdict in found)

    def ranked(self, *levels: Level) -> list[Verdict]:
        """The verdicts over all contexts at these levels, fewest bytes first."""
        found = [every for _, _, every in self.rows if every.level in levels]
        return sorted(found, key=lambda v: v.read[1] if v.read else 1.0)


def board(results: Results, model: str, labels: Sequence[str] | None = None, suite: str | None = None) -> list[Grid]:
    """Return the grid of every topic of a model, or of one of its suites, that has a number and a method to judge."""
    found = [grid(results, topic, labels) for topic in results.topics(model, suite) if results.contexts(topic)]
    return [each for each in found if each.rows or not _swept(results, labels)]


def grid(results: Results, topic: Topic, labels: Sequence[str] | None = None) -> Grid:
    """Judge methods (all that were scored, unless named) on one topic at each of its contexts."""
    contexts = results.contexts(topic)
    rows = with_traffic(results.rows_of(topic))
    swept = [label for label in _swept(results, labels) if results.meant_for(label, topic.model)]
    full = rows[(rows["kind"] == REFERENCE_METHOD) & (rows["status"] == "ok")].set_index("context")["value"]
    scores = [with_unit(score(full[c], topic.unit), topic.unit) if c in full else "" for c in contexts]
    unsolved = {c for c in contexts if c in full and not full_does(topic.metric, topic.unit, full[c])}
    judged = []
    in_bytes = rows["budget"].map(bytes_share).notna()
    failed = [label for label in swept if label in results.failed(topic.model)]
    for label in swept:
        if label in failed:
            each = [Verdict(label, topic, context, "hole", words=FAILED) for context in contexts]
            judged.append((label, each, Verdict(label, topic, None, "hole", words=FAILED)))
            continue
        mine = {context: tried(results, rows[~in_bytes], topic, label, context) for context in contexts}
        each = [
            Verdict(label, topic, context, "unsolved")
            if context in unsolved
            else _explained(_verdict(results, topic, label, context, [mine[context]]), rows[~in_bytes], [context])
            for context in contexts
        ]
        solved = [mine[context] for context in contexts if context not in unsolved]
        every = Verdict(label, topic, None, "unsolved")
        left = [context for context in contexts if context not in unsolved]
        if solved:
            every = _explained(_verdict(results, topic, label, None, solved), rows[~in_bytes], left)
        judged.append((label, each, every))
    left = [context for context in contexts if context not in unsolved]
    columns = {
        budget(text): {
            label: Verdict(label, topic, None, "hole", words=FAILED)
            if label in failed
            else _at_bytes(results, topic, label, left, rows[rows["budget"] == text])
            for label in swept
            if left
        }
        for text in sorted(set(rows.loc[in_bytes, "budget"]), key=budget_order)
    }
    small = [_few(results, topic, context) if context in left else None for context in contexts]
    return Grid(topic, contexts, scores, judged, columns, ["" if few is None else few.words for few in small])


def _swept(results: Results, labels: Sequence[str] | None) -> list[str]:
    return [x for x in labels or results.labels if results.kind(x) != REFERENCE_METHOD]


def margin(unit: str) -> str:
    """Return the margin in the unit of differences."""
    return f"{100 * MARGIN:g} points" if is_fraction(unit) else f"{number(MARGIN, 2)} {difference_unit(unit)}"


def tried(results: Results, rows: pd.DataFrame, topic: Topic, label: str, context: int) -> pd.DataFrame:
    """Return the rows of a method at one context that have a number, with their levels; see :func:`levelled`."""
    ran = rows[(rows["method"] == label) & (rows["context"] == context) & (rows["status"] == "ok")]
    return levelled(results, topic, ran)


def levelled(results: Results, topic: Topic, rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows that have a number with the level of each.

    A row that is shown by its interval, but not where answers to one prompt depend on each other, takes the bounds
    that say so.
    """
    ran = rows.assign(level="alone", depends=False)
    for at, row in ran[ran["diff_to_full"].notna()].iterrows():
        low, high = row["diff_low"], row["diff_high"]
        label, context = str(row["method"]), int(row["context"])
        cluster = results.dependence.bounds.get((topic.model, topic.suite, topic.task, label, row["budget"], context))
        fallen = cluster is not None and _worse_end(topic, low, high) >= -MARGIN > _worse_end(topic, *cluster)
        if cluster is not None and fallen:
            low, high = cluster
            ran.loc[at, ["diff_low", "diff_high", "depends"]] = [low, high, True]
        inside = row["diff_to_full"] * (1 if topic.higher_is_better else -1) >= -MARGIN
        shown = _worse_end(topic, low, high) >= -MARGIN
        open_ = "few" if _few(results, topic, context) else "estimate"
        ran.loc[at, "level"] = "shown" if shown else open_ if inside else "worse"
    return ran


def _few(results: Results, topic: Topic, context: int) -> TooFew | None:
    return results.dependence.too_few.get((topic.model, topic.suite, topic.task, context))


def _worse_end(topic: Topic, low: float, high: float) -> float:
    """The end of an interval at which a method is worst, below zero where it is worse than Full."""
    return low if topic.higher_is_better else -high


def smallest(cells: Sequence[pd.DataFrame]) -> tuple[str, Level] | None:
    """Return the budget from which on every larger one holds in all the cells of a method, and its weakest level.

    Without such a budget it is the largest that all the cells have; ``None`` where they share none.

    Args:
        cells: rows of :func:`tried`.
    """
    levels = [dict(zip(rows["budget"], rows["level"], strict=True)) for rows in cells]
    shared = set.intersection(*(set(found) for found in levels))
    if not shared:
        return None
    weakest = {text: min((found[text] for found in levels), key=_WEAKEST_FIRST.index) for text in shared}
    budgets = sorted(shared, key=budget_order)
    if "alone" in weakest.values():
        return budgets[-1], "alone"
    chosen = budgets[-1]
    for text in reversed(budgets):
        if weakest[text] == "worse":
            break
        chosen = text
    return chosen, weakest[chosen]


def _at_bytes(results: Results, topic: Topic, label: str, contexts: Sequence[int], rows: pd.DataFrame) -> Verdict:
    """The verdict at one budget in bytes over the contexts; a method that reads more at every budget has none."""
    found = _verdict(results, topic, label, None, [tried(results, rows, topic, label, context) for context in contexts])
    refused = rows.loc[rows["method"] == label, "status"].eq("unsupported").any()
    if found.level == "hole" and refused:
        return replace(found, words="no budget reads this")
    return _explained(found, rows, contexts)


def _explained(found: Verdict, rows: pd.DataFrame, contexts: Sequence[int]) -> Verdict:
    """Say of a hole that memory made it, and at which of several contexts."""
    mine = rows[(rows["method"] == found.label) & (rows["status"] == "oom")]
    short = sorted(set(contexts) & set(mine["context"]))
    if found.level != "hole" or not short:
        return found
    where = f" at {listing([short_tokens(context) for context in short])}" if len(contexts) > 1 else ""
    return replace(found, words=f"out of memory{where}")


def _verdict(results: Results, topic: Topic, label: str, context: int | None, cells: Sequence[pd.DataFrame]) -> Verdict:
    """The verdict over some contexts: a budget holds where it, and every larger one, holds at each of them."""
    found = smallest(cells)
    if found is None:
        return Verdict(label, topic, context, "hole")
    chosen, level = found
    if level == "alone":
        return Verdict(label, topic, context, "alone")
    rows = pd.concat([mine[mine["budget"] == chosen] for mine in cells])
    # Over several contexts the numbers shown are those of the context that comes off worst.
    worst = rows.sort_values("diff_to_full", ascending=topic.higher_is_better).iloc[0]
    read = rows["bytes_share"].dropna()
    words = equivalence(topic, worst["diff_to_full"], worst["diff_low"], worst["diff_high"])
    few = [_few(results, topic, int(at)) for at in rows.loc[rows["level"] == "few", "context"]]
    if level == "few":
        words = max((found for found in few if found is not None), key=lambda found: found.half_width).words
    elif level == "estimate" and rows["depends"].any():
        words = "answers to one prompt depend on each other"
    flips = results.flips.get((topic.model, topic.suite, topic.task, label, chosen, int(worst["context"])))
    return Verdict(
        label,
        topic,
        context,
        level,
        budget(chosen),
        (float(read.min()), float(read.max())) if len(read) else None,
        gap(worst["diff_to_full"], topic.unit),
        gap_interval(worst["diff_low"], worst["diff_high"], topic.unit),
        with_unit(score(worst["value"], topic.unit), topic.unit),
        words,
        "" if flips is None else flips.words,
    )


def equivalence(topic: Topic, value: float, low: float, high: float) -> str:
    """Say what an interval of a difference to Full shows, and which way the difference goes where it excludes 0."""
    if pd.isna(low) or pd.isna(high):
        return ""
    better_end = -high if topic.higher_is_better else low
    if _worse_end(topic, low, high) < -MARGIN:
        return ""
    inside = better_end >= -MARGIN
    words = "equivalent within the margin" if inside else "not worse by more than the margin"
    if low <= 0 <= high:
        return words
    worse = (value < 0) == topic.higher_is_better
    kind = ("fewer right" if worse else "more right") if is_fraction(topic.unit) else "worse" if worse else "better"
    return f"{words}; {kind} by {gap(abs(value), topic.unit).lstrip('+')} {difference_unit(topic.unit)}"


__all__ = ["FAILED", "MARGIN", "Flips", "Grid", "Verdict", "board", "equivalence", "grid", "margin"]
