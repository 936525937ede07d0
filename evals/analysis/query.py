"""Look a number up in the tables of a run: one way for pages, claims and the README to find what they quote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from longdecode.engine.errors import LongDecodeError

TableName = Literal["summary", "speed", "comparisons", "measures"]
Where = dict[str, str | int | float | list[str] | list[int]]
_NUMBERS: Mapping[str, tuple[str, str, str, str]] = {
    "summary": ("value", "low", "high", "variant"),
    "speed": ("ratio", "ratio_low", "ratio_high", "variant"),
    "comparisons": ("difference", "low", "high", "a"),
    "measures": ("value", "low", "high", "variant"),
}
"""By table, the columns of number, bounds and variant."""
TEXT = dict.fromkeys(("budget", "b_budget", "setting", "over_setting", "op_sizes", "params"), str)
"""Columns that look like numbers at times and are none."""


class QueryError(LongDecodeError):
    """A query that names a column its table does not have."""


class AmbiguousQueryError(QueryError):
    """A query that leaves several rows, none of which is the one."""


class Query(BaseModel):
    """Name one row of a table.

    Args:
        table: summary, speed, comparisons or measures.
        where: values by column; of a list any may stand, and an earlier one is taken before a later one.
        longest: of several rows, take the one with the largest number in this column, and only then by ``where``.
        best: of several rows, take the one with the highest value, or the lowest.
        relative: a difference in per cent of b's value; of comparisons alone.
        side: the score of a or b alone, which has no interval there; of comparisons alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: TableName
    where: Where = {}
    longest: str | None = None
    best: Literal["highest", "lowest"] | None = None
    relative: bool = False
    side: Literal["a", "b"] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Query:
        if (self.relative or self.side) and self.table != "comparisons":
            raise ValueError(f"relative and side are of comparisons alone, not of {self.table}")
        return self

    def narrowed(self, where: Where) -> Query:
        """Return the query with more values, or others."""
        return self.model_copy(update={"where": {**self.where, **where}})


@dataclass(frozen=True, slots=True)
class Found:
    """A number that was looked up: value, interval, samples, unit, variant, and the row it stands in."""

    value: float
    low: float
    high: float
    n: int
    unit: str
    variant: str
    row: Mapping[str, Any]


class Tables:
    """The tables of one run, read once; a table that the run does not have is empty."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self._tables = tables

    @classmethod
    def read(cls, folder: Path) -> Tables:
        """Read summary.csv, speed.csv, comparisons.csv and measures.csv of a results folder, those that exist."""
        paths = {name: folder / f"{name}.csv" for name in _NUMBERS}
        return cls({name: read_table(path) for name, path in paths.items() if path.is_file()})

    def find(self, query: Query | None) -> Found | None:
        """Return the number of the one row that fits; nothing where none does. Rows without a number do not count.

        Raises:
            QueryError: a column is unknown.
            AmbiguousQueryError: several rows fit.
        """
        rows = self._tables.get(query.table, pd.DataFrame()) if query else pd.DataFrame()
        if query is None or rows.empty:
            return None
        number = _NUMBERS[query.table][0]
        if unknown := sorted(set(query.where) - set(rows.columns)):
            raise QueryError(f"{query.table}.csv has no column {', '.join(unknown)}; it has {', '.join(rows.columns)}")
        rows = rows[rows[number].notna()]
        wanted = {name: list(map(_text, x if isinstance(x, list) else [x])) for name, x in query.where.items()}
        for name, values in wanted.items():
            rows = rows[rows[name].map(_text).isin(values)]
        if query.longest:
            rows = rows[rows[query.longest] == rows[query.longest].max()]
        if query.best:
            rows = rows.sort_values(number, ascending=query.best == "lowest", kind="stable").head(1)
        for name, values in wanted.items():
            rank = rows[name].map(_text).map(values.index)
            rows = rows[rank == rank.min()]
        if len(rows) > 1:
            differing = ", ".join(name for name in rows.columns if rows[name].astype(str).nunique() > 1)
            raise AmbiguousQueryError(f"{len(rows)} rows of {query.table}.csv fit; they differ in {differing}")
        return None if rows.empty else _found(query, {str(name): each for name, each in rows.iloc[0].items()})


def _found(query: Query, row: Mapping[str, Any]) -> Found:
    """Return the number of a row in the unit that pages show."""
    *numbers, variant = _NUMBERS[query.table]
    scale, unit = (1.0, "times") if query.table == "speed" else (1.0, str(row["unit"]))
    if unit == "fraction":
        scale, unit = 100.0, "points"
    if query.relative:
        scale, unit = 100 / float(row["b_value"]), "percent"
    value, low, high = (scale * float(row[name]) for name in numbers)
    if query.side:
        value, low, high = float(row[f"{query.side}_value"]), math.nan, math.nan
    n = row.get("n")
    return Found(value, low, high, 0 if pd.isna(n) else int(n), unit, str(row[variant]), row)


def read_table(path: Path) -> pd.DataFrame:
    """Read one table; an empty field is missing, and no text is taken for missing."""
    return pd.read_csv(path, dtype=TEXT, keep_default_na=False, na_values=[""], low_memory=False)


def _text(value: object) -> str:
    """Return a field or a wanted value as both are compared: whole numbers without a point, fractions as they stand."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
