"""Read what papers published, one typed YAML file a paper, and look up our numbers that stand beside.

A :class:`Query` names one row of a run's tables: the one way for pages, claims and the README to find what they quote.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longdecode.engine.errors import LongDecodeError
from longdecode.methods.card import FAST_LOADER

TableName = Literal["summary", "speed", "comparisons", "measures"]
Where = dict[str, str | int | float | list[str] | list[int]]
_NUMBERS: Mapping[str, tuple[str, str, str, str]] = {
    "summary": ("value", "low", "high", "variant"),
    "speed": ("ratio", "ratio_low", "ratio_high", "variant"),
    "comparisons": ("difference", "low", "high", "a"),
    "measures": ("value", "low", "high", "variant"),
}
"""By table, the columns of number, bounds and variant."""
_UNITS = {"scope_accuracy": (100.0, "points"), "median_us": (0.001, "ms"), "heads_over_half": (1.0, "heads")}
"""By other columns that are asked for, their scale and unit."""
_TEXT = (
    "a b b_budget b_model budget label method model op_sizes over over_setting params revision sampler setting suite "
    "task text variant"
).split()
"""Columns of names and settings, which may look like numbers or truth values: a model may be called 512 or true."""


class DeclarationError(LongDecodeError):
    """A paper's declaration that contradicts itself."""


class QueryError(LongDecodeError):
    """A table that cannot be read, or a query of a column that it does not have."""


class AmbiguousQueryError(QueryError):
    """A query that leaves several rows, none of which is the one."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Query(_Closed):
    """Name one row of a table.

    Args:
        table: summary, speed, comparisons or measures.
        where: values by column; of a list any may stand, and an earlier one is taken before a later one.
        longest: of several rows, take the one with the largest number in this column, and only then by ``where``.
        best: of several rows, take the one with the highest value, or the lowest.
        relative: a difference in per cent of b's value; of comparisons alone.
        side: the score of a or b alone, which has no interval there; of comparisons alone.
        lost: what a loses to b, the difference with its sign turned; of comparisons alone.
        column: the number in another column, which has no interval: of the summary a mean, of speed a time.
    """

    table: TableName
    where: Where = {}
    longest: str | None = None
    best: Literal["highest", "lowest"] | None = None
    relative: bool = False
    side: Literal["a", "b"] | None = None
    lost: bool = False
    column: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> Query:
        if (self.relative or self.side or self.lost) and self.table != "comparisons":
            raise ValueError(f"relative, side and lost are of comparisons alone, not of {self.table}")
        return self


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
        self._coded: dict[tuple[str, str], tuple[np.ndarray, list[str]]] = {}

    @classmethod
    def read(cls, folder: Path) -> Tables:
        """Read summary.csv, speed.csv, comparisons.csv and measures.csv of a results folder, those that exist."""
        return cls({name: read_table(folder / f"{name}.csv") for name in _NUMBERS})

    def find(self, query: Query | None) -> Found | None:
        """Return the number of the one row that fits; nothing where none does. Rows without a number do not count.

        Raises:
            QueryError: a column is unknown.
            AmbiguousQueryError: several rows fit.
        """
        if query is None or (rows := self._tables.get(query.table, pd.DataFrame())).empty:
            return None
        number = query.column or _NUMBERS[query.table][0]
        if unknown := sorted(set(query.where) - set(rows.columns)):
            raise QueryError(f"{query.table}.csv has no column {', '.join(unknown)}; it has {', '.join(rows.columns)}")
        wanted = {name: list(map(_text, x if isinstance(x, list) else [x])) for name, x in query.where.items()}
        kept = np.arange(len(rows))  # a row of all columns is dear: they are taken once
        for name, values in wanted.items():
            codes, texts = self._codes(query.table, name)
            kept = kept[np.isin(codes[kept], [code for code, text in enumerate(texts) if text in values])]
        if not len(kept):
            return None
        rows = rows.iloc[kept[rows[number].iloc[kept].notna()]]
        if query.longest:
            rows = rows[rows[query.longest] == rows[query.longest].max()]
        if query.best:
            rows = rows.sort_values(number, ascending=query.best == "lowest", kind="stable").head(1)
        for name, values in wanted.items() if len(rows) > 1 else ():
            rank = rows[name].map(_text).map(values.index)
            rows = rows[rank == rank.min()]
        if len(rows) > 1:
            differing = ", ".join(name for name in rows.columns if rows[name].astype(str).nunique() > 1)
            raise AmbiguousQueryError(f"{len(rows)} rows of {query.table}.csv fit; they differ in {differing}")
        return None if rows.empty else _found(query, {str(name): each for name, each in rows.iloc[0].items()})

    def _codes(self, table: str, name: str) -> tuple[np.ndarray, list[str]]:
        """Return which of its different fields each row of a column has, and these as text; kept for other queries."""
        if (table, name) not in self._coded:
            codes, fields = pd.factorize(self._tables[table][name], use_na_sentinel=False)
            self._coded[table, name] = codes, list(map(_text, fields))
        return self._coded[table, name]


def _found(query: Query, row: Mapping[str, Any]) -> Found:
    """Return the number of a row in the unit that pages show."""
    *numbers, variant = _NUMBERS[query.table]
    scale, unit = (1.0, "times") if query.table == "speed" else (1.0, str(row["unit"]))
    if unit == "fraction":
        scale, unit = 100.0, "points"
    if query.relative:
        scale, unit = 100 / (float(row["b_value"]) or math.nan), "percent"  # of a b that scores 0 no share tells
    value, low, high = (scale * float(row[name]) for name in numbers)
    if query.lost:
        value, low, high = -value, -high, -low
    if query.column:
        scale, unit = _UNITS.get(query.column, (1.0, "questions"))
        value, low, high = scale * float(row[query.column]), math.nan, math.nan
    if query.side:
        value, low, high = float(row[f"{query.side}_value"]), math.nan, math.nan
    n = row.get("n")
    return Found(value, low, high, 0 if pd.isna(n) else int(n), unit, str(row[variant]), row)


def read_table(path: Path) -> pd.DataFrame:
    """Read one table; an empty field is missing, and no text is taken for missing. One that was not written is empty.

    Raises:
        QueryError: the file is no table.
    """
    if not path.is_file():
        return pd.DataFrame()
    try:
        return pd.read_csv(path, dtype=dict.fromkeys(_TEXT, str), na_values="", keep_default_na=False, low_memory=False)
    except ValueError as error:  # pandas' own errors are of this kind
        raise QueryError(f"{path}: no table that can be read: {' '.join(str(error).split())}") from None


def _text(value: object) -> str:
    """Return a field or a wanted value as both are compared: whole numbers without a point, fractions as they stand."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class PairRequest(_Closed):
    """Ask for one variant against another wherever both ran the same task.

    Args:
        a: variants that are compared.
        b: the variant that each is compared with.
        a_model: model of ``a``, or trainings such as ``fork0 + fork1``, whose mean it is; every model where left out.
        b_model: model of ``b``; that of ``a`` where it is left out. One beside several is a checkpoint, not a training.
        any_budget: also pair different budgets, as where a budget was chosen so that both read alike.
    """

    a: tuple[str, ...] = Field(min_length=1)
    b: str
    a_model: str | None = None
    b_model: str | None = None
    any_budget: bool = False


class Ours(_Closed):
    """Say which row of our tables stands beside each number of a printed table.

    Args:
        query: what all numbers share.
        keys: our column by printed key; a printed key that is not named plays no part.
        column: our column that the printed column's name fills.
        values: by printed key, or ``column``, what a printed value means here; a value that is not listed has no row.
            Several keys that mean something together stand as ``"sampler, penalty"``.
        beyond_print: also where print's number was not found.
        shown: by printed column, the column of ours that stands there in place of the table's own.
        run: the run that answers first; the one named after the paper where left out.
    """

    query: Query
    keys: dict[str, str] = {}
    column: str | None = None
    values: dict[str, dict[str | int | float, Where]] = {}
    beyond_print: bool = False
    shown: dict[str, str] = {}
    run: str | None = None

    def query_of(self, row: dict[str, Any], column: str) -> Query | None:
        """Return the query of one printed number; nothing where no row of ours stands for it."""
        printed = {**row, "column": column}
        where: Where = {ours: printed[name] for name, ours in self.keys.items()}
        if self.column:
            where[self.column] = column
        for names, meant in self.values.items():
            parts = [printed[name] for name in names.split(", ")]
            found = meant.get(parts[0] if len(parts) == 1 else ", ".join(map(str, parts)))
            if found is None:
                return None
            where |= found
        return self.query.model_copy(update={"where": {**self.query.where, **where}, "column": self.shown.get(column)})


class PrintedTable(_Closed):
    """One table as printed.

    Args:
        section: where it stands in print, or in the notes on it.
        unit: of its numbers.
        digits: after the point in print.
        what: what its numbers are exactly.
        keys: columns that name a row.
        columns: columns that hold numbers.
        rows: keys, numbers (or words where print has no number), ``mark`` (where they were read; ``marks`` where a
            column differs), ``form`` (how a number is worded in print, such as ``up to``), ``digits`` where a row
            differs. Lists as keys stand for a row each, the last key changing fastest; a column then has a number each.
        ours: which rows of our tables stand beside; left out where none can.
        note: what differs between print and here.
    """

    section: str
    unit: str
    digits: int
    what: str
    keys: list[str]
    columns: list[str]
    rows: list[dict[str, Any]]
    ours: Ours | None = None
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _one_by_one(cls, given: dict[str, Any]) -> dict[str, Any]:
        return given | {"rows": [row for written in given["rows"] for row in _rows(written, given["keys"])]}

    def text(self, row: dict[str, Any], column: str) -> str:
        """Return a number or words as printed; empty where none were found."""
        if row.get(column) is None or isinstance(row[column], str):
            return row.get(column) or ""
        return f"{row.get('form', '')} {row[column]:,.{row.get('digits', self.digits)}f}".replace("-", "\u2212").strip()

    def mark(self, row: dict[str, Any], column: str) -> str:
        """Return where a number was read."""
        return str((row.get("marks") or {}).get(column, row["mark"]))


def _rows(written: Mapping[str, Any], keys: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows that one with lists stands for: each combination of its keys, with its place in every other list.

    Raises:
        ValueError: a list has not a number for each of them.
    """
    places = list(product(*(x if isinstance(x := written[key], list) else [x] for key in keys)))
    lists = {name for name, value in written.items() if isinstance(value, list)} - {*keys}
    if wrong := sorted(name for name in lists if len(written[name]) != len(places)):
        raise ValueError(f"{', '.join(wrong)}: a number for each of {len(places)} rows is needed in {written}")
    for at, place in enumerate(places):
        one = {name: value[at] if name in lists else value for name, value in written.items()}
        yield one | dict(zip(keys, place, strict=True))


class Substitute(_Closed):
    """A row that stands in a claim's place where the paper's own was not run.

    Args:
        query: the row.
        conditions: its conditions in words.
        why: the reason, filled in as a claim's.
        comparable: true where it is the claim's own task and metric, on another model; others give no verdict.
    """

    query: Query
    conditions: str
    why: str
    comparable: bool = False


class Claim(_Closed):
    """One claim of a paper, and where its answers stand.

    Args:
        claim: the claim in a line.
        published: table and keys of its number in print, and the column.
        minus: of a difference, the keys in which the row that is taken off differs from that of ``published``.
        direction: whether the claim is of at least so much, at most, or about.
        no_effect: the value that would say that the claimed effect is absent (1 for times, 0 for differences).
        like: the number under the paper's own conditions.
        instead: what stands there where ``like`` was not run.
        best: the best that any variant of ours reaches.
        conditions: the conditions of ``like`` in words.
        bound: the most that memory traffic allows under those conditions.
        trainings: of a claim on trained forks, how many trainings stand behind each side.
        comparable: false where another model, task or metric leaves no verdict.
        run: the committed run that answers it, so that it has one answer.
        why: the reason for what came out; ``{bound}`` and columns of the row behind ``like`` are filled in.
    """

    claim: str
    published: dict[str, str | int | float]
    minus: dict[str, str | int | float] = {}
    direction: Literal["at_least", "at_most", "about"] = "at_least"
    no_effect: float = 0.0
    like: Query
    instead: Substitute | None = None
    best: Query | None = None
    bound: Query | None = None
    conditions: str
    trainings: int | None = None
    comparable: bool = True
    run: str | None = None
    why: str = ""


class Declaration(_Closed):
    """Everything that a paper's page shows: claims, tables as printed, and rows to query.

    Args:
        paper: title, url, venue, year, code and its revision.
        name: the method's name in titles.
        method: the registered method.
        summary: what the method does, in a line or two.
        differs: why its numbers differ here, a line a reason.
        marks: what each mark of a source means.
        note: what of the paper could be read.
        models: the paper's models by the names that its tables use.
        pairs: comparisons that are made for this paper beside those with full attention.
        pools: by name, tasks whose mean is compared too.
        claims: in the order of the page.
        tables: as printed.
    """

    paper: dict[str, str | int]
    name: str
    method: str
    summary: str
    differs: list[str] = []
    marks: dict[str, str]
    note: str
    models: dict[str, str] = {}
    pairs: list[PairRequest] = []
    pools: dict[str, list[str]] = {}
    claims: list[Claim] = Field(min_length=1)
    tables: dict[str, PrintedTable]


def load_declarations(folder: Path) -> dict[str, Declaration]:
    """Read the declarations of a folder by name, in order.

    Raises:
        DeclarationError: one is not YAML, or does not have the shape of :class:`Declaration`.
    """
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[path.stem] = Declaration.model_validate(yaml.load(path.read_text(encoding="utf-8"), FAST_LOADER))
        except (ValidationError, yaml.YAMLError) as error:
            raise DeclarationError(f"{path}: {error}") from error
    return found
