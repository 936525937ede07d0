"""Read what a paper published and how this project looks each number up: one YAML file a paper, typed and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.analysis.comparisons import PairRequest
from longdecode.evals.analysis.query import Query, Where


class DeclarationError(LongDecodeError):
    """A paper's declaration that contradicts itself."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ours(_Closed):
    """Say which row of our tables stands beside each number of a printed table.

    Args:
        query: what all numbers share.
        keys: our column by printed key; a printed key that is not named plays no part.
        column: our column that the printed column's name fills.
        values: by printed key, or ``column``, what a printed value means here; a value that is not listed has no row.
            Several keys that mean something together stand as ``"sampler, penalty"``.
    """

    query: Query
    keys: dict[str, str] = {}
    column: str | None = None
    values: dict[str, dict[str | int | float, Where]] = {}

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
        return self.query.narrowed(where)


class PrintedTable(_Closed):
    """One table as printed.

    Args:
        section: where it stands in print, or in the notes on it.
        unit: of its numbers.
        digits: after the point in print.
        what: what its numbers are exactly.
        keys: columns that name a row.
        columns: columns that hold numbers.
        rows: keys, numbers, ``mark`` (where they were read; ``marks`` where a column differs), ``form`` (how a number
            is worded in print, such as ``up to``), ``digits`` where a row differs.
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

    def text(self, row: dict[str, Any], column: str) -> str:
        """Return a number as it is printed; empty where none was found."""
        if row.get(column) is None:
            return ""
        return f"{row.get('form', '')} {row[column]:,.{row.get('digits', self.digits)}f}".strip()

    def mark(self, row: dict[str, Any], column: str) -> str:
        """Return where a number was read."""
        return str((row.get("marks") or {}).get(column, row["mark"]))


class Claim(_Closed):
    """One claim of a paper, and where its answers stand.

    Args:
        claim: the claim in a line.
        published: table and keys of its number in print, and the column.
        direction: whether the claim is of at least so much, or at most.
        no_effect: the value that would say that the claimed effect is absent (1 for times, 0 for differences).
        like: the number under the paper's own conditions.
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
    direction: Literal["at_least", "at_most"] = "at_least"
    no_effect: float = 0.0
    like: Query
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
    marks: dict[str, str]
    note: str
    models: dict[str, str] = {}
    pairs: list[PairRequest] = []
    pools: dict[str, list[str]] = {}
    claims: list[Claim] = Field(min_length=1)
    tables: dict[str, PrintedTable]

    def printed(self, claim: Claim) -> tuple[PrintedTable, dict[str, Any], str]:
        """Return the table, row and column of a claim's number in print.

        Raises:
            DeclarationError: not one row has it.
        """
        asked = dict(claim.published)
        table, column = self.tables[str(asked.pop("table"))], str(asked.pop("column"))
        rows = [row for row in table.rows if asked.items() <= row.items() and row.get(column) is not None]
        if len(rows) != 1:
            raise DeclarationError(f"{claim.claim}: {claim.published} names {len(rows)} rows with a number")
        return table, rows[0], column


def load_declarations(folder: Path) -> dict[str, Declaration]:
    """Read the declarations of a folder by name, in order.

    Raises:
        DeclarationError: one is not YAML, or does not have the shape of :class:`Declaration`.
    """
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[path.stem] = Declaration.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (ValidationError, yaml.YAMLError) as error:
            raise DeclarationError(f"{path}: {error}") from error
    return found
