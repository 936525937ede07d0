"""Published figures of a paper, from its published.yaml: typed, checked, each with the mark of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from longdecode.engine.errors import LongDecodeError
from longdecode.reporting import wording


class PublishedError(LongDecodeError):
    """A file of published figures that contradicts itself."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperFacts(_Closed):
    """Name a paper and its code."""

    title: str
    url: str
    venue: str
    year: int
    code: str
    code_revision: str


class KnownModel(_Closed):
    """A model of the paper: its name in print, and paths or hub ids by which a run's model is recognised."""

    title: str
    paths: list[str]


class Table(_Closed):
    """One published table; see the head of a published.yaml."""

    section: str
    unit: str
    digits: int
    what: str
    keys: list[str]
    columns: list[str]
    rows: list[dict[str, Any]]

    @model_validator(mode="after")
    def _rows_fit(self) -> Table:
        known = {*self.keys, *self.columns, "mark", "marks", "form", "digits"}
        for row in self.rows:
            if unknown := sorted(set(row) - known):
                raise ValueError(f"a row has {unknown}; keys are {self.keys}, columns {self.columns}")
            if missing := sorted({*self.keys, "mark"} - set(row)):
                raise ValueError(f"the row {row} lacks {missing}")
        places = [tuple(row[key] for key in self.keys) for row in self.rows]
        if twice := sorted({str(place) for place in places if places.count(place) > 1}):
            raise ValueError(f"rows named twice: {twice}")
        return self


class Published(_Closed):
    """Everything that a paper published and that could be read."""

    paper: PaperFacts
    marks: dict[str, str]
    note: str
    models: dict[str, KnownModel]
    tables: dict[str, Table]

    @model_validator(mode="after")
    def _marks_are_explained(self) -> Published:
        used = {
            mark
            for table in self.tables.values()
            for row in table.rows
            for marks in (row["mark"], *(row.get("marks") or {}).values())
            for mark in marks.split("; ")
        }
        if unknown := sorted(used - set(self.marks)):
            raise ValueError(f"marks without explanation: {unknown}")
        return self

    def figure(self, table: str, column: str, **keys: Any) -> PublishedFigure | None:
        """One number of a table, or nothing where it was not found in print."""
        found = self.tables[table]
        for row in found.rows:
            if all(row[name] == value for name, value in keys.items()):
                return None if row.get(column) is None else _figure(row, column, found.digits)
        return None

    def rows(self, table: str, **keys: Any) -> Sequence[Mapping[str, Any]]:
        """Rows of a table with the keys given, in the file's order."""
        return [row for row in self.tables[table].rows if all(row[name] == value for name, value in keys.items())]

    def model_of(self, path: str) -> str | None:
        """The paper's name of a model that a run took from ``path``."""
        tail = path.rstrip("/").rsplit("/", 1)[-1].lower()
        for name, model in self.models.items():
            if any(tail == known.rsplit("/", 1)[-1].lower() for known in model.paths):
                return name
        return None


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A number in print: its value, how it is worded, and the mark of its source."""

    value: float
    mark: str
    form: str
    digits: int
    signed: bool = False

    @property
    def text(self) -> str:
        """The number with the digits it has in print."""
        number = wording.number(self.value, self.digits, signed=self.signed)
        return f"{self.form} {number}".strip()

    def minus(self, other: PublishedFigure) -> PublishedFigure:
        """Return the difference of two published numbers, signed."""
        return replace(self, value=self.value - other.value, signed=True)


def load_published(path: Path) -> Published:
    """Read and check a file of published figures.

    Raises:
        PublishedError: it does not have the shape that its head describes.
    """
    try:
        return Published.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise PublishedError(f"{path}: {error}") from error


def _figure(row: Mapping[str, Any], column: str, digits: int) -> PublishedFigure:
    mark = (row.get("marks") or {}).get(column, row["mark"])
    return PublishedFigure(float(row[column]), short_mark(mark), row.get("form", ""), row.get("digits", digits))


def short_mark(mark: str) -> str:
    """Marks in a row of a table: ``paper; digests A, B``."""
    parts = mark.split("; ")
    digests = [part.removeprefix("digest ") for part in parts if part.startswith("digest ")]
    others = [part for part in parts if not part.startswith("digest ")]
    named = [f"digest{'s' if len(digests) > 1 else ''} {', '.join(digests)}"] if digests else []
    return "; ".join([*others, *named])
