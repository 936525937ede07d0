"""What came out, in one table: from which budget on a method is as good as Full, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from longdecode.reporting.results import REFERENCE_METHOD, Results, Topic
from longdecode.reporting.wording import (
    NARROW,
    budget,
    difference_unit,
    gap,
    gap_interval,
    is_fraction,
    number,
    score,
    with_unit,
)

MARGIN = 0.02
"""Within 0.02 of Full (2 points of a percentage, 0.02 of a loss) counts as equal: about what papers call lossless."""

Level = Literal["shown", "estimate", "worse", "alone", "hole"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One method on one topic at one context.

    ``level`` is ``shown`` where the interval of the difference stays within the margin, ``estimate`` where only the
    difference itself does, ``worse`` where it does at no budget tried, ``alone`` where Full did not run, ``hole`` where
    the method did not. ``budget`` is the smallest one from which on this holds at every larger budget tried, else the
    largest tried. ``read`` is what was read there, over all heads and layers, as a share of what Full read.
    """

    label: str
    topic: Topic
    context: int
    level: Level
    budget: str
    share: float
    read: float | None
    difference: str
    bounds: str
    value: str

    @property
    def headline(self) -> str:
        """The words of the table's cell."""
        if self.level == "hole":
            return "not run"
        if self.level == "alone":
            return "no Full to compare with"
        if self.level == "worse":
            return f"not by {self.budget}"
        return f"from {self.budget}"

    @property
    def reads(self) -> str:
        """What was read there, in words; empty where it was not counted."""
        return "" if self.read is None else f"reads {number(100 * self.read, 0)}{NARROW}%"


@dataclass(frozen=True, slots=True)
class Finding:
    """One topic in short: Full's score, who comes within the margin (cheapest first), who does not."""

    topic: Topic
    context: int
    full: str
    near: list[Verdict]
    far: list[Verdict]
    absent: list[Verdict]


@dataclass(frozen=True, slots=True)
class Board:
    """The verdicts of one model: a row a method, a column a topic."""

    topics: list[tuple[Topic, int]]
    rows: list[tuple[str, list[Verdict]]]
    findings: list[Finding]


def board(results: Results, model: str) -> Board:
    """Every method on every topic, each at the longest context at which Full ran."""
    topics = [
        (topic, context) for topic in results.topics(model) if (context := results.longest_context(topic)) is not None
    ]
    labels = [label for label in results.labels if results.kind(label) != REFERENCE_METHOD]
    rows = [(label, [verdict(results, topic, context, label) for topic, context in topics]) for label in labels]
    findings = [
        finding(results, topic, context, [verdicts[place] for _, verdicts in rows])
        for place, (topic, context) in enumerate(topics)
    ]
    return Board(topics, rows, findings)


def verdict(results: Results, topic: Topic, context: int, label: str) -> Verdict:
    """From which budget on one method is within the margin of Full."""
    rows = results.rows_of(topic, context)
    ran = rows[(rows["method"] == label) & (rows["status"] == "ok")]
    mine = ran[ran["diff_to_full"].notna()].sort_values("share")
    if mine.empty:
        return Verdict(label, topic, context, "hole" if ran.empty else "alone", "", 0.0, None, "", "", "")
    sign = 1.0 if topic.higher_is_better else -1.0
    mine = mine.assign(read=_shares_read(rows, mine))
    worst = mine["diff_low"] if topic.higher_is_better else -mine["diff_high"]
    for level, close in (("shown", worst >= -MARGIN), ("estimate", sign * mine["diff_to_full"] >= -MARGIN)):
        first = _from_here_on(close)
        if first is not None:
            return _verdict(mine.iloc[first], label, topic, context, "shown" if level == "shown" else "estimate")
    return _verdict(mine.iloc[-1], label, topic, context, "worse")


def finding(results: Results, topic: Topic, context: int, verdicts: list[Verdict]) -> Finding:
    """One topic in short."""
    rows = results.rows_of(topic, context)
    full = rows[(rows["kind"] == REFERENCE_METHOD) & (rows["status"] == "ok")]
    return Finding(
        topic,
        context,
        with_unit(score(full["value"].iloc[0], topic.unit), topic.unit) if len(full) else "",
        sorted(
            (v for v in verdicts if v.level in ("shown", "estimate")),
            key=lambda v: v.share if v.read is None else v.read,
        ),
        [v for v in verdicts if v.level == "worse"],
        [v for v in verdicts if v.level in ("alone", "hole")],
    )


def _shares_read(rows: pd.DataFrame, mine: pd.DataFrame) -> pd.Series:
    """Tokens read by all heads and layers over those that Full read; missing where either was not counted."""
    full = rows.loc[(rows["kind"] == REFERENCE_METHOD) & (rows["status"] == "ok"), "kv_tokens_read"]
    return mine["kv_tokens_read"] / (full.iloc[0] if len(full) else float("nan"))


def margin(unit: str) -> str:
    """The margin in the unit of differences."""
    return f"{100 * MARGIN:g} points" if is_fraction(unit) else f"{number(MARGIN, 2)} {difference_unit(unit)}"


def _from_here_on(close: pd.Series) -> int | None:
    """Index of the first entry of the unbroken run of true values at the end."""
    flags = list(close)
    count = next((back for back, flag in enumerate(reversed(flags)) if not flag), len(flags))
    return len(flags) - count if count else None


def _verdict(row: pd.Series, label: str, topic: Topic, context: int, level: Level) -> Verdict:
    unit = topic.unit
    bounds = gap_interval(row["diff_low"], row["diff_high"], unit)
    return Verdict(
        label,
        topic,
        context,
        level,
        budget(row["budget"]),
        float(row["share"]),
        float(row["read"]) if pd.notna(row["read"]) else None,
        gap(row["diff_to_full"], unit),
        bounds,
        with_unit(score(row["value"], unit), unit),
    )
