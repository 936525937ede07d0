"""Show a paper as its declaration says: claims first, then its tables as printed with our numbers beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.evals.analysis.declaration import Declaration, PaperFacts, PrintedTable, load_declarations
from longdecode.evals.analysis.query import AmbiguousQueryError, Found, Query, Tables
from longdecode.reporting import wording
from longdecode.reporting.wording import NARROW

_DIGITS = {
    "points": 1, "percent": 1, "times": 2, "ms": 2, "share": 2, "minutes": 2, "nats": 3, "nats/token": 3,
    "nats/byte": 3,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One number: as printed, where it was read, and ours with its interval; empty strings where there is none."""

    printed: str
    mark: str
    ours: str = ""
    interval: str = ""


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table as printed: heads of its keys, its columns, and rows of keys with cells."""

    title: str
    caption: str
    keys: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[tuple[Sequence[str], Sequence[Cell]]]
    note: str
    stands: str

    @property
    def measured(self) -> bool:
        """True where a number of ours stands beside one in print."""
        return any(cell.ours for _, cells in self.rows for cell in cells)


@dataclass(frozen=True, slots=True)
class PaperPage:
    """A paper's page; ``name`` is its declaration and the method that it is about."""

    name: str
    title: str
    summary: str
    facts: PaperFacts
    note: str
    marks: Mapping[str, str]
    claims: Sequence[Mapping[str, str]]
    tables: Sequence[ShownTable]
    pairs: Sequence[Sequence[str]]

    @property
    def concerned(self) -> bool:
        """True where the run has a number for a claim or a table."""
        return any(claim["ours"] for claim in self.claims) or any(table.measured for table in self.tables)


def paper_pages(results: Path) -> list[PaperPage]:
    """Return the pages of the papers that a run has numbers for, from the tables in its folder.

    Raises:
        DeclarationError: a declaration contradicts itself.
        QueryError: a declaration's query names an unknown column.
    """
    tables = Tables.read(results)
    claims = _read(results / "claims.csv")
    pairs = _read(results / "comparisons.csv")
    declared = load_declarations(Path(__file__).parent)
    pages = [_page(name, paper, tables, claims, pairs) for name, paper in declared.items()]
    return [page for page in pages if page.concerned]


def _page(name: str, paper: Declaration, tables: Tables, claims: pd.DataFrame, pairs: pd.DataFrame) -> PaperPage:
    mine = claims[claims["paper"] == name] if len(claims) else claims
    shown = [_table(title, table, paper, tables) for title, table in paper.tables.items()]
    return PaperPage(
        name, paper.name, paper.summary, paper.paper, paper.note, paper.marks,
        [_claim(row) for row in mine.to_dict("records")], sorted(shown, key=lambda table: not table.measured),
        list(_pairs(paper, pairs)),
    )  # fmt: skip


def _claim(row: Mapping[Any, Any]) -> dict[str, str]:
    """Return a claim as text: in print, like for like with its interval, and the best variant."""
    unit = "" if pd.isna(row["unit"]) else str(row["unit"])
    ours = "" if pd.isna(row["like_for_like"]) else _number(row["like_for_like"], unit)
    best = "" if pd.isna(row["best"]) else f"{_number(row['best'], unit)} ({row['best_variant']})"
    return {
        "claim": row["claim"], "published": f"{row['published']} {_unit(unit)}".strip(),
        "source": short_mark(row["source"]), "ours": ours,
        "interval": _interval(row["low"], row["high"], unit) if ours else "",
        "conditions": row["conditions"], "best": best, "verdict": row["verdict"],
        "why": "" if pd.isna(row["why"]) else row["why"],
    }  # fmt: skip


def _table(name: str, table: PrintedTable, paper: Declaration, tables: Tables) -> ShownTable:
    rows, stands = [], list[Found]()
    for printed in table.rows:
        cells = []
        for column in table.columns:
            query = table.ours.query_of(printed, column) if table.ours else None
            try:
                found = tables.find(query) if query and table.text(printed, column) else None
            except AmbiguousQueryError as error:
                cells.append(
                    Cell(table.text(printed, column), short_mark(table.mark(printed, column)), "?", str(error))
                )
                continue
            stands += [found] if found else []
            cells.append(_cell(table, printed, column, query, found))
        rows.append(([_key(paper, key, printed[key]) for key in table.keys], cells))
    keys, columns = ([name.replace("_", " ") for name in names] for names in (table.keys, table.columns))
    title = f"{name.replace('_', ' ').capitalize()} ({table.section})"
    caption = f"{table.what} Unit: {table.unit or 'as named'}."
    return ShownTable(title, caption, keys, columns, rows, table.note, _stands(stands))


def _cell(
    table: PrintedTable, printed: Mapping[str, Any], column: str, query: Query | None, found: Found | None
) -> Cell:
    row = dict(printed)
    text, mark = table.text(row, column), short_mark(table.mark(row, column))
    if query is None or found is None:
        return Cell(text, mark)
    signed = query.table == "comparisons" and not query.side
    bounds = _interval(found.low, found.high, found.unit, signed=signed)
    return Cell(text, mark, _number(found.value, found.unit, signed=signed), bounds or f"n = {found.n}")


def _stands(found: Sequence[Found]) -> str:
    """Say which variants, models, contexts and revisions our numbers are of."""
    said = []
    for name, heads in (("", ("variant", "a")), ("model", ("model",)), ("context", ("context",)),
                        ("budget", ("budget",)), ("revision", ("revision",))):  # fmt: skip
        values = [str(f.row[head]) for f in found for head in heads if head in f.row and not pd.isna(f.row[head])]
        if distinct := list(dict.fromkeys(value.removesuffix(".0") for value in values)):
            said.append(f"{name} {', '.join(distinct)}".strip())
    return "; ".join(said)


def _pairs(paper: Declaration, pairs: pd.DataFrame) -> Iterator[Sequence[str]]:
    """Yield the rows of comparisons that the paper asks for, as text."""
    for request in paper.pairs if len(pairs) else ():
        rows = pairs[pairs["a"].isin(request.a) & (pairs["b"] == request.b)]
        rows = rows[rows["b_model"] == (request.b_model or rows["model"])]
        for row in rows[rows["model"] == (request.a_model or rows["model"])].to_dict("records"):
            unit = str(row["unit"])
            sides = [
                f"{row[side]}, {row[model]}, {wording.budget(str(row[budget]))}"
                for side, model, budget in (("a", "model", "budget"), ("b", "b_model", "b_budget"))
            ]
            place = f"{row['task'] if row['task'] != 'all' else row['suite']}, {wording.short_tokens(row['context'])}"
            judged = row["verdict"] if isinstance(row["verdict"], str) else str(row["status"]).replace("_", " ")
            yield (
                *sides, place, str(row["n"]), f"{_number(row['difference'], unit, signed=True)} {_unit(unit)}",
                _interval(row["low"], row["high"], unit, signed=True), wording.p_value(row["p_holm"]), judged,
            )  # fmt: skip


def _key(paper: Declaration, key: str, value: object) -> str:
    if key == "model":
        return paper.models.get(str(value), str(value))
    if key == "budget":
        return wording.budget(str(value))
    if isinstance(value, int):
        return wording.short_tokens(value) if key == "context" else f"{value:,}"
    return str(value)


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"budget": str, "b_budget": str}) if path.is_file() else pd.DataFrame()


def _number(value: float, unit: str, *, signed: bool = False) -> str:
    return wording.number(value, _DIGITS.get(unit, 2), signed=signed)


def _interval(low: float, high: float, unit: str, *, signed: bool = False) -> str:
    return "" if pd.isna(low) or pd.isna(high) else wording.interval(low, high, _DIGITS.get(unit, 2), signed=signed)


def _unit(unit: str) -> str:
    return {"times": "", "percent": f"{NARROW}%", "share": ""}.get(unit, unit)


def short_mark(mark: str) -> str:
    """Return the marks of a source in short: ``paper; digests A, B``."""
    parts = mark.split("; ")
    digests = [part.removeprefix("digest ") for part in parts if part.startswith("digest ")]
    others = [part for part in parts if not part.startswith("digest ")]
    named = [f"digest{'s' if len(digests) > 1 else ''} {', '.join(digests)}"] if digests else []
    return "; ".join([*others, *named])
