"""The front page's verdict grid: a row a method, a column a family of suites at one context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from longdecode.evals.budgets import bytes_share
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import Results, Topic
from longdecode.reporting.verdicts import FAILED, WITHIN, Grid, Level, Verdict, smallest, tried
from longdecode.reporting.wording import NARROW, budget, difference_unit, gap, gap_interval, listing, number


@dataclass(frozen=True, slots=True)
class Cell:
    """One verdict: the smallest budget that holds on every suite of a family, or the worst loss at the largest.

    ``reads`` is the most bytes that the budget reads on any of the suites, as a share of Full's.
    """

    level: Level
    text: str
    words: str = ""
    reads: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A family of suites at one context; ``topics`` are those that Full does there, ``left`` those that it fails;
    ``whole`` counts the family's suites."""

    family: str
    context: int
    topics: Sequence[Topic]
    left: Sequence[Topic]
    whole: int

    @property
    def part(self) -> str:
        """Count of the family's suites that are judged, where not all are."""
        return "" if len(self.topics) == self.whole else f"{len(self.topics)} of {self.whole}"

    @property
    def names(self) -> str:
        """The suites in words."""
        parts = [f"judged on {listing([topic.name for topic in self.topics])}"] if self.topics else []
        return "; ".join(
            [*parts, *([f"Full fails {listing([topic.name for topic in self.left])}"] if self.left else [])]
        )


@dataclass(frozen=True, slots=True)
class FamilyGrid:
    """The grid, the method that holds most often first."""

    columns: Sequence[Column]
    rows: Sequence[tuple[str, Sequence[Cell]]]

    @property
    def heads(self) -> list[tuple[str, int]]:
        """The families, each with its number of columns."""
        families = [column.family for column in self.columns]
        return [(family, families.count(family)) for family in dict.fromkeys(families)]


def family_grid(results: Results, families: Sequence[tuple[str, Sequence[Grid]]]) -> FamilyGrid:
    """Return the grid of one model from its topics' grids, by family."""
    columns = [column for family, grids in families for column in _columns(family, grids)]
    labels = list(dict.fromkeys(label for _, grids in families for grid in grids for label, _, _ in grid.rows))
    tables = {topic: _rows(results, topic) for column in columns for topic in column.topics}
    rows = [(label, [_cell(results, tables, column, label) for column in columns]) for label in labels]
    held = {label: sum(cell.level in WITHIN for cell in cells) for label, cells in rows}
    return FamilyGrid(columns, sorted(rows, key=lambda row: -held[row[0]]))


def suites_by_family(grids: Sequence[Grid], families: Mapping[str, str]) -> list[tuple[str, list[Grid]]]:
    """Return the grids by family of their suite; a suite that names none is one of its own."""
    found: dict[str, list[Grid]] = {}
    for grid in grids:
        found.setdefault(families.get(grid.topic.suite) or grid.topic.suite, []).append(grid)
    return list(found.items())


def _columns(family: str, grids: Sequence[Grid]) -> list[Column]:
    found = []
    for context in sorted({context for grid in grids for context in grid.contexts}):
        here = [grid for grid in grids if context in grid.contexts]
        judged = [grid for grid in here if any(v.context == context and v.level != "unsolved" for v in _all(grid))]
        left = [grid.topic for grid in here if grid not in judged]
        found.append(Column(family, context, [grid.topic for grid in judged], left, len(grids)))
    return found


def _all(grid: Grid) -> list[Verdict]:
    return [verdict for _, each, _ in grid.rows for verdict in each]


def _rows(results: Results, topic: Topic) -> pd.DataFrame:
    """Rows at budgets that a verdict is searched over: those in bytes are each method's own."""
    rows = with_traffic(results.rows_of(topic))
    return rows[rows["budget"].map(bytes_share).isna()]


def _cell(results: Results, tables: Mapping[Topic, pd.DataFrame], column: Column, label: str) -> Cell:
    if not column.topics:
        return Cell("unsolved", "Full fails")
    if label in results.failed(column.topics[0].model):
        return Cell("hole", FAILED)
    ran = {topic: tried(results, tables[topic], topic, label, column.context) for topic in column.topics}
    known = {topic: rows for topic, rows in ran.items() if len(rows)}
    found = smallest(list(known.values())) if known else None
    if found is None or (len(known) < len(ran) and found[1] != "worse"):
        return Cell("hole", _why(tables, column, label))
    text, level = found
    if level == "alone":
        return Cell(level, "no Full")
    at = [(topic, rows[rows["budget"] == text].iloc[0]) for topic, rows in known.items()]
    topic, row = max(at, key=lambda pair: (-1.0 if pair[0].higher_is_better else 1.0) * pair[1]["diff_to_full"])
    unit = difference_unit(topic.unit)
    most = (
        f"{gap(row['diff_to_full'], topic.unit)} {unit} {gap_interval(row['diff_low'], row['diff_high'], topic.unit)}"
    )
    share = max(float(row["bytes_share"]) for _, row in at)
    reads = "" if pd.isna(share) else f"{number(100 * share, 0)}{NARROW}%"
    words = f"at {budget(text)}{f', {reads} of bytes' if reads else ''}: at worst {most} on {topic.name}"
    short = gap(row["diff_to_full"], topic.unit) if level == "worse" else budget(text).removesuffix(" tokens")
    return Cell(level, short, words, reads)


def _why(tables: Mapping[Topic, pd.DataFrame], column: Column, label: str) -> str:
    rows = pd.concat([tables[topic] for topic in column.topics])
    rows = rows[(rows["method"] == label) & (rows["context"] == column.context)]
    return "out of memory" if (rows["status"] == "oom").any() else "not run"


__all__ = ["Cell", "Column", "FamilyGrid", "family_grid", "suites_by_family"]
