"""Look a number up in the tables of a run: one way for pages, claims and the README to find what they quote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from longdecode.engine.errors import LongDecodeError

TableName = Literal["summary", "speed", "comparisons", "measures"]
Where = dict[str, str | int | float | list[str] | list[int]]
_NUMBERS: Mapping[str, tuple[str, str, str]] = {
    "summary": ("value", "low", "high"),
    "speed": ("ratio", "ratio_low", "ratio_high"),
    "comparisons": ("difference", "low", "high"),
    "measures": ("value", "low", "high"),
}
_VARIANT = {"summary": "variant", "speed": "variant", "comparisons": "a", "measures": "variant"}
_TEXT = {"budget": str, "b_budget": str, "setting": str, "over_setting": str, "op_sizes": str, "params": str}


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
        return cls(
            {
                name: pd.read_csv(path, dtype=_TEXT, keep_default_na=False, na_values=[""], low_memory=False).rename(
                    columns={"subject": "method", "label": "variant"}
                )
                for name in _NUMBERS
                if (path := folder / f"{name}.csv").is_file()
            }
        )

    def rows(self, query: Query) -> pd.DataFrame:
        """Return the rows that fit, those with a number alone.

        Raises:
            QueryError: a column is unknown.
        """
        table = self._tables.get(query.table, pd.DataFrame())
        if table.empty:
            return table
        if unknown := sorted(set(query.where) - set(table.columns)):
            raise QueryError(f"{query.table}.csv has no column {', '.join(unknown)}; it has {', '.join(table.columns)}")
        rows = table[table[_NUMBERS[query.table][0]].notna()]
        for name, wanted in query.where.items():
            many = wanted if isinstance(wanted, list) else [wanted]
            rows = rows[rows[name].map(_text).isin([_text(value) for value in many])]
        return rows

    def find(self, query: Query) -> Found | None:
        """Return the number of the one row that fits; nothing where none does.

        Raises:
            QueryError: a column is unknown.
            AmbiguousQueryError: several rows fit.
        """
        rows = self.rows(query)
        if rows.empty:
            return None
        number = _NUMBERS[query.table][0]
        if query.longest:
            rows = rows[rows[query.longest] == rows[query.longest].max()]
        if query.best:
            rows = rows.sort_values(number, ascending=query.best == "lowest", kind="stable").head(1)
        for name, wanted in query.where.items():
            if isinstance(wanted, list) and len(rows) > 1:
                shown = rows[name].map(_text)
                rows = rows[shown == next(_text(each) for each in wanted if (shown == _text(each)).any())]
        if len(rows) > 1:
            differing = [name for name in rows.columns if rows[name].astype(str).nunique() > 1]
            raise AmbiguousQueryError(
                f"{len(rows)} rows of {query.table}.csv fit; they differ in {', '.join(differing)}"
            )
        row = {str(name): each for name, each in rows.iloc[0].items()}
        scale, unit = _scale(query, row)
        value, low, high = (scale * float(row[name]) for name in _NUMBERS[query.table])
        if query.side:
            value, low, high = float(row[f"{query.side}_value"]), math.nan, math.nan
        n = row.get("n")
        samples = 0 if n is None or math.isnan(n) else int(n)
        return Found(value, low, high, samples, unit, str(row[_VARIANT[query.table]]), row)


def _scale(query: Query, row: Mapping[str, Any]) -> tuple[float, str]:
    """Return the factor to the unit that pages show, and that unit."""
    if query.relative:
        return 100 / float(row["b_value"]), "percent"
    if query.table == "speed":
        return 1.0, "times"
    unit = str(row["unit"])
    return (100.0, "points") if unit == "fraction" else (1.0, unit)


def _text(value: object) -> str:
    """Return a cell or a wanted value as both are compared: whole numbers without a point, fractions as they stand."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
