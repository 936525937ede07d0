"""Make a paper's page: its claims, its key figure redrawn, and its tables as printed with our numbers in each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from longdecode.evals.analysis.declaration import Declaration, PrintedTable
from longdecode.evals.analysis.query import AmbiguousQueryError, Found, Query
from longdecode.reporting import charts, wording
from longdecode.reporting.overview import claim_cells
from longdecode.reporting.site import Figure, Page, Site

_PIVOT_ROWS = 12
"""Tables with more rows have their last key as columns, as papers print them."""


@dataclass(frozen=True)
class Cell:
    """One number: as printed with its spread, and ours with its interval; ``found`` is the row that ours stands in."""

    printed: str = ""
    number: float | None = None
    ours: str = ""
    interval: str = ""
    found: Found | None = None


@dataclass(frozen=True)
class Mirror:
    """A table as printed: heads of its rows and columns, and cells by row."""

    name: str
    title: str
    what: str
    keys: Sequence[str]
    columns: Sequence[Sequence[str]]
    rows: Sequence[tuple[Sequence[str], Sequence[Cell]]]
    sources: str
    stands: str
    note: str

    @property
    def measured(self) -> bool:
        """True where a number of ours stands in a cell."""
        return any(cell.ours for _, cells in self.rows for cell in cells)


def write_papers(site: Site) -> list[str]:
    """Write the pages of the papers that the site has a number for, and return their names."""
    written = []
    for name, paper in site.papers.items():
        claims = site.claims
        claims = claims[claims.paper == name] if len(claims) else claims
        tables = [mirror(site, name, title, table) for title, table in paper.tables.items()]
        if not (len(claims) and claims.answered.any()) and not any(table.measured for table in tables):
            continue
        page = Page(f"paper-{name}")
        site.write(
            page, "paper.html", paper=paper, claims=[claim_cells(site, row) for row in claims.itertuples()],
            figure_shown=key_figure(site, page, paper, tables), tables=sorted(tables, key=lambda table: not table.measured), pairs=pairs(site, paper),
        )  # fmt: skip
        written.append(name)
    return written


def mirror(site: Site, paper_name: str, name: str, table: PrintedTable) -> Mirror:
    """Return a table as printed with our numbers."""
    paper = site.papers[paper_name]
    columns = [c for c in table.columns if not (c.endswith("_std") and c.removesuffix("_std") in table.columns)]
    cells = [[cell(site, paper_name, table, row, column) for column in columns] for row in table.rows]
    keys, pivot = list(table.keys), len(table.rows) > _PIVOT_ROWS and len(table.keys) > 1
    if pivot:
        last = keys.pop()
        values = list(dict.fromkeys(row[last] for row in table.rows))
        grouped: dict[tuple[Any, ...], dict[tuple[Any, str], Cell]] = {}
        for row, found in zip(table.rows, cells, strict=True):
            grouped.setdefault(tuple(row[key] for key in keys), {}).update({(row[last], column): c for column, c in zip(columns, found, strict=True)})
        heads = [(wording.spaced(column), _key(paper, last, value)) for column in columns for value in values]
        rows = [([_key(paper, k, v) for k, v in zip(keys, key, strict=True)], [found.get((value, column), Cell()) for column in columns for value in values]) for key, found in grouped.items()]
    else:
        heads = [(wording.spaced(column),) for column in columns]
        rows = [([_key(paper, key, row[key]) for key in keys], found) for row, found in zip(table.rows, cells, strict=True)]
    marks = dict.fromkeys(mark for row in table.rows for column in columns if table.text(row, column) for mark in table.mark(row, column).split("; "))
    return Mirror(
        name, f"{wording.spaced(name)} ({table.section})", table.what, [wording.spaced(key) for key in keys], heads, rows,
        "; ".join(marks), _stands([c.found for found in cells for c in found if c.found]), table.note,
    )  # fmt: skip


def cell(site: Site, paper: str, table: PrintedTable, row: Mapping[str, Any], column: str) -> Cell:
    """Return one cell; ours comes from the first run that has the row, the paper's own run first."""
    printed = table.text(dict(row), column)
    if not printed:
        return Cell()
    spread = row.get(f"{column}_std")
    text = f"{printed}±{spread}" if spread is not None else printed
    query = table.ours.query_of(dict(row), column) if table.ours else None
    found = find(site, paper, query) if query else None
    number = float(row[column])
    if query is None or found is None:
        return Cell(text, number)
    signed = query.table == "comparisons" and not query.side
    bounds = wording.interval(found.low, found.high, found.unit) or (f"n = {found.n}" if found.n else "")
    return Cell(text, number, wording.number(found.value, found.unit, signed=signed), bounds, found)


def find(site: Site, paper: str, query: Query) -> Found | None:
    """Return the row of a query from the paper's own run, else from the first other that has it."""
    for run in sorted(site.tables, key=lambda name: name != paper):
        try:
            found = site.tables[run].find(query)
        except AmbiguousQueryError:
            continue
        if found:
            return found
    return None


def _stands(found: Sequence[Found]) -> str:
    """Say which models, contexts and budgets our numbers are of."""
    words = (("model", wording.model_title), ("context", wording.tokens), ("budget", wording.budget))
    parts = []
    for column, say in words:
        values = dict.fromkeys(say(f.row[column]) for f in found if column in f.row and not wording.missing(f.row[column]))  # type: ignore[operator]
        if 0 < len(values) <= 4:
            parts.append(f"{column} {', '.join(values)}")
    return "; ".join(parts)


def _key(paper: Declaration, key: str, value: object) -> str:
    if key == "model":
        return paper.models.get(str(value), str(value))
    if key == "method" and wording.card(str(value)):
        return wording.method_title(str(value))
    if isinstance(value, int):
        return wording.tokens(value) if key in ("context", "generated", "prefill") else f"{value:,}"
    return wording.spaced(str(value))


def key_figure(site: Site, page: Page, paper: Declaration, tables: Sequence[Mirror]) -> Figure | None:
    """Return print (grey) and ours of the table with the most numbers of ours in one column, two at least."""
    candidates = []
    for table in tables:
        for at, head in enumerate(table.columns):
            rows = [(" · ".join(keys), cells[at]) for keys, cells in table.rows if cells[at].found and cells[at].number is not None]
            if len(rows) > 1:
                candidates.append((min(len(rows), 8), table, head, rows[:8]))
    if not candidates:
        return None
    _, table, head, rows = max(candidates, key=lambda item: item[0])
    frame = pd.DataFrame({
        "name": [name for name, _ in rows], "print": [c.number for _, c in rows], "ours": [c.found.value for _, c in rows if c.found],
        "low": [c.found.low for _, c in rows if c.found], "high": [c.found.high for _, c in rows if c.found],
        "family": wording.family(paper.method),
    })  # fmt: skip
    above = int((frame.ours >= frame.print).sum())
    title = f"{table.title}, {', '.join(head)}: {above} of {len(frame)} rows reach the printed number"
    return site.figure(page, "key", title, charts.dumbbells(frame, f"{wording.spaced(table.name)}: {', '.join(head)}"), frame, "Grey: in print. Colour: measured here, with its 95 % interval.")


def pairs(site: Site, paper: Declaration) -> list[dict[str, Any]]:
    """Return the comparisons that the paper asks for beside those with full attention, at the longest context of each task."""
    out = []
    for run in site.runs:
        for request in paper.pairs if len(run.comparisons) else ():
            if request.b == "full":
                continue
            rows = run.comparisons[run.comparisons.a.isin(request.a) & (run.comparisons.b == request.b)]
            rows = rows[(rows.task == "all") | (rows.groupby("suite").task.transform("nunique") == 1)]
            rows = rows[rows.context == rows.groupby("suite").context.transform("max")]
            for r in rows.itertuples():
                out.append({
                    "a": run.title(r.a), "b": run.title(r.b), "task": wording.task_title(r.suite, r.task), "model": wording.model_title(r.model),
                    "context": wording.tokens(r.context), "budget": wording.budget(r.budget), "n": int(r.n), "unit": r.unit,
                    "difference": wording.number(r.difference, r.unit, signed=True), "interval": wording.interval(r.low, r.high, r.unit),
                    "verdict": r.verdict if isinstance(r.verdict, str) else "", "why": wording.REASONS.get(r.status, ""),
                })  # fmt: skip
    return out
