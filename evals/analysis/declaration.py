"""Read what papers published, one typed YAML file a paper, and make claims.csv: each claim's number beside ours.

A claim's row has its number in print, the one that this project looks up for it, and one word for what came out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.analysis.comparisons import PairRequest
from longdecode.evals.analysis.query import AmbiguousQueryError, Found, Query, Tables, Where

COLUMNS = (
    "paper", "claim", "published", "like_for_like", "low", "high", "unit", "conditions", "bound", "best_variant",
    "best", "verdict", "why", "source", "run", "revision",
)  # fmt: skip
Outcome = Literal["reproduced", "partly", "not reproduced", "not comparable", "cannot tell", "not run"]
UNPROVEN = 0.05
"""Corrected p-value above which a sign is not proven."""
MOST_OF_IT = 0.5
"""Share of the printed effect from which on a claim holds partly."""


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
        beyond_print: also where print's number was not found.
    """

    query: Query
    keys: dict[str, str] = {}
    column: str | None = None
    values: dict[str, dict[str | int | float, Where]] = {}
    beyond_print: bool = False

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


@dataclass(frozen=True, slots=True)
class Printed:
    """Say what print has of a claim: text, where it was read, unit, digits; no number where print has only words."""

    text: str
    mark: str
    unit: str
    digits: int
    number: float | None


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
            differs.
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
        """Return a number or words as printed; empty where none were found."""
        if row.get(column) is None or isinstance(row[column], str):
            return row.get(column) or ""
        return f"{row.get('form', '')} {row[column]:,.{row.get('digits', self.digits)}f}".replace("-", "\u2212").strip()

    def mark(self, row: dict[str, Any], column: str) -> str:
        """Return where a number was read."""
        return str((row.get("marks") or {}).get(column, row["mark"]))


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
        direction: whether the claim is of at least so much, or at most.
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
    direction: Literal["at_least", "at_most"] = "at_least"
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

    def printed(self, claim: Claim) -> Printed:
        """Return what print says of a claim; a difference of two printed numbers is taken here, and its mark has both.

        Raises:
            DeclarationError: not one row has it, or a difference is of words.
        """
        table, column = self.tables[str(claim.published["table"])], str(claim.published["column"])
        asked = {name: value for name, value in claim.published.items() if name not in ("table", "column")}
        row = _only(claim, table, column, asked)
        text, mark, digits = table.text(row, column), table.mark(row, column), row.get("digits", table.digits)
        if isinstance(row[column], str):
            return Printed(text, mark, table.unit, digits, None)
        if not claim.minus:
            return Printed(text, mark, table.unit, digits, float(row[column]))
        other = _only(claim, table, column, asked | claim.minus)
        gap = float(row[column]) - float(other[column])
        marks = dict.fromkeys([*mark.split("; "), *table.mark(other, column).split("; ")])
        signed = f"{gap:+,.{digits}f}".replace("-", "\u2212")
        return Printed(
            signed, f"{'; '.join(marks)}: {text} \u2212 {table.text(other, column)}", table.unit, digits, gap
        )


def _only(claim: Claim, table: PrintedTable, column: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the one row of a printed table that has these keys and a number, or words, in the column."""
    rows = [row for row in table.rows if asked.items() <= row.items() and row.get(column) is not None]
    if len(rows) != 1 or (claim.minus and isinstance(rows[0][column], str)):
        raise DeclarationError(f"{claim.claim}: {dict(asked)} names {len(rows)} rows with a number in {column}")
    return rows[0]


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


def claims_table(papers: Mapping[str, Declaration], tables: Tables, profile: str) -> pd.DataFrame:
    """Return a row for every claim of every paper; what was not run, or fits several rows, says so.

    A claim has one answer among the committed runs: that of the run it names. A run that no claim names answers all.

    Raises:
        QueryError: a claim's query names an unknown column.
    """
    named = {claim.run for paper in papers.values() for claim in paper.claims}
    rows = [
        _row(name, paper, claim, tables, claim.run == profile or profile not in named)
        for name, paper in papers.items()
        for claim in paper.claims
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def outcome(printed: float | None, claim: Claim, found: Found | None, digits: int) -> Outcome:
    """Return what came out of a claim under the paper's own conditions.

    At least so much: ``reproduced`` where the interval reaches the printed figure (as rounded there), ``partly`` where
    it reaches half of the printed effect, ``not reproduced`` where it stays below; of words without a number the sign
    alone decides, where its corrected p-value proves it. At most so much: ``reproduced`` where the whole interval lies
    below, ``not reproduced`` where none of it does. ``cannot tell``: there is no interval, it holds no effect as well
    as half of the printed one, or forks of one training each stand behind it. The best variant has no say.
    """
    if found is None:
        return "not run"
    if not claim.comparable:
        return "not comparable"
    if not (math.isfinite(found.low) and math.isfinite(found.high)) or (claim.trainings or 2) < 2:
        return "cannot tell"
    rounding, by_sign = 0.0 if printed is None else 0.5 * 10.0**-digits, printed is None
    printed = claim.no_effect if printed is None else printed
    if claim.direction == "at_most":
        if found.high <= printed + rounding:
            return "reproduced"
        return "not reproduced" if found.low > printed + rounding else "cannot tell"
    sign = 1.0 if printed >= claim.no_effect else -1.0
    least, most = sorted((sign * found.low, sign * found.high))
    goal, nothing = sign * printed, sign * claim.no_effect
    if most < nothing + MOST_OF_IT * (goal - nothing):
        return "not reproduced"
    if least <= nothing or (by_sign and found.row.get("p_holm", 0.0) > UNPROVEN):
        return "cannot tell"
    return "reproduced" if most >= goal - rounding else "partly"


def _row(name: str, paper: Declaration, claim: Claim, tables: Tables, answers: bool) -> dict[str, Any]:
    printed = paper.printed(claim)
    found, best, bound, why = None, None, None, ""
    if answers:
        try:
            found, best, bound = map(tables.find, (claim.like, claim.best, claim.bound))
            if found is None and claim.instead and (found := tables.find(claim.instead.query)):
                claim = claim.model_copy(update=claim.instead.model_dump(include={"comparable", "conditions", "why"}))
        except AmbiguousQueryError as error:
            why = f"Not read: {error}."
    elif claim.run:
        why = f"The run {claim.run} answers it."
    if found:
        why = claim.why.format(bound=bound.value if bound else math.nan, **found.row)
    return {
        "paper": name, "claim": claim.claim, "published": printed.text, "conditions": claim.conditions,
        "like_for_like": found and found.value, "low": found and found.low, "high": found and found.high,
        "unit": found.unit if found else printed.unit, "bound": bound and bound.value,
        "best_variant": best and _variant(best, found), "best": best and best.value, "why": why,
        "source": printed.mark, "run": claim.run,
        "verdict": outcome(printed.number, claim, found, printed.digits),
        "revision": found and found.row.get("revision"),
    }  # fmt: skip


def _variant(best: Found, like: Found | None) -> str:
    """Return a variant with the task, context and batch at which it is best, where those of like for like differ."""
    other = like.row if like else {}
    places = [
        f"{name} {value if isinstance(value, str) else format(int(value), ',')}"
        for name in ("task", "context", "batch")
        if not pd.isna(value := best.row.get(name)) and value != other.get(name)
    ]
    return ", ".join([best.variant, *places])
