"""Make a paper's page: its claims, its key figure redrawn, and its tables with our numbers in each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd

from longdecode.analysis.declaration import Declaration, Found, PrintedTable
from longdecode.reporting import charts, wording
from longdecode.reporting.overview import claim_cells
from longdecode.reporting.runs import each, middle
from longdecode.reporting.site import Figure, Page, Site

_PIVOT_ROWS = 12
"""Tables with more rows have their last key as columns, as papers print them."""
_FEWEST = 2
"""Rows that a key figure has at least."""
_SHOWN_CUT = 0.01
"""Share of answers cut at the limit from which on it stands beside a score."""


@dataclass(frozen=True)
class Entry:
    """One number: the paper's with its spread, and ours with its interval.

    ``found`` is the row that ours stands in, ``cut`` the share of its answers that ran to the limit, and ``asked`` is
    true where a row of ours is expected.
    """

    printed: str = ""
    number: float | None = None
    ours: str = ""
    interval: str = ""
    found: Found | None = None
    cut: str = ""
    asked: bool = False


@dataclass(frozen=True)
class Mirror:
    """A table as in the paper: heads of its rows and columns, and cells by row."""

    name: str
    title: str
    what: str
    keys: Sequence[str]
    columns: Sequence[Sequence[str]]
    rows: Sequence[tuple[Sequence[str], Sequence[Entry]]]
    sources: str
    stands: str
    note: str

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The upper of two heads with the columns under each, in their order."""
        return [(head, len(list(under))) for head, under in groupby(heads[0] for heads in self.columns)]

    @property
    def measured(self) -> bool:
        """True where a number of ours stands in a cell."""
        return any(cell.ours for _, cells in self.rows for cell in cells)


def write_papers(site: Site) -> None:
    """Write the pages of the papers that the site has a number for."""
    found = {}
    for name, paper in site.papers.items():
        claims = site.claims[site.claims.paper == name] if len(site.claims) else site.claims
        told = {claim.published["table"] for claim in paper.claims}
        tables = [
            mirror(site, name, title, table)
            for title, table in paper.tables.items()
            if table.ours or title not in told  # a table of claims alone stands above
        ]
        if (len(claims) and claims.answered.any()) or any(table.measured for table in tables):
            found[name] = claims, sorted(tables, key=lambda table: not table.measured)
    site.written_papers = list(found)
    for name, (claims, tables) in found.items():
        page, paper = Page(f"paper-{name}"), site.papers[name]
        cells = [claim_cells(site, row) for row in claims.pipe(each)]
        site.write(
            page,
            "paper.html",
            paper=paper,
            claims=cells,
            figures=[shown for make in (key_figure, curves) if (shown := make(site, page, name, tables))],
            tables=tables,
            pairs=pairs(site, paper),
        )


def mirror(site: Site, paper_name: str, name: str, table: PrintedTable) -> Mirror:
    """Return a table of the paper with our numbers."""
    paper = site.papers[paper_name]
    columns = [c for c in table.columns if not (c.endswith("_std") and c.removesuffix("_std") in table.columns)]
    cut = name in wording.TITLES["cut_answers"]
    cells = [[cell(site, paper_name, table, row, column, cut) for column in columns] for row in table.rows]
    keys, pivot = list(table.keys), len(table.rows) > _PIVOT_ROWS and len(table.keys) > 1
    if pivot:
        last = keys.pop()
        values = list(dict.fromkeys(row[last] for row in table.rows))
        grouped: dict[tuple[Any, ...], dict[tuple[Any, str], Entry]] = {}
        for row, found in zip(table.rows, cells, strict=True):
            grouped.setdefault(tuple(row[key] for key in keys), {}).update(
                {(row[last], column): c for column, c in zip(columns, found, strict=True)}
            )
        heads: list[tuple[str, ...]] = [
            (wording.column_title(column), _key(paper, last, value)) for column in columns for value in values
        ]
        rows = [
            (
                [_key(paper, k, v) for k, v in zip(keys, key, strict=True)],
                [found.get((value, column), Entry()) for column in columns for value in values],
            )
            for key, found in grouped.items()
        ]
    else:
        heads = [(wording.column_title(column),) for column in columns]
        rows = [
            ([_key(paper, key, row[key]) for key in keys], found) for row, found in zip(table.rows, cells, strict=True)
        ]
    marked = (table.mark(row, column) for row in table.rows for column in columns if table.text(row, column))
    marks = dict.fromkeys(mark for marks in marked for mark in marks.split("; "))
    return Mirror(
        name,
        _title(paper_name, name, table.section),
        table.what,
        [wording.spaced(key) for key in keys],
        heads,
        rows,
        "; ".join(marks),
        _stands([c.found for found in cells for c in found if c.found]),
        table.note,
    )


def cell(site: Site, paper: str, table: PrintedTable, row: Mapping[str, Any], column: str, cut: bool) -> Entry:
    """Return one cell: the paper's number, ours, or both; where ``cut``, with the answers that ran to the limit."""
    printed = table.text(dict(row), column)
    if not printed and not (table.ours and table.ours.beyond_print):
        return Entry()
    spread = row.get(f"{column}_std")
    text = f"{printed}±{spread}" if spread is not None else printed
    query = table.ours.query_of(dict(row), column) if table.ours else None
    found = site.find(table.ours.run or paper, query) if table.ours and query else None
    number = None if not printed or isinstance(row[column], str) else float(row[column])
    if query is None or found is None:
        return Entry(text, number, asked=query is not None)
    signed = query.table == "comparisons" and not query.side
    sample = f"n = {found.n}" if found.n > 1 and not query.column else ""
    bounds = wording.interval(found.low, found.high, found.unit) or sample
    words = f"{share:.0%}" if cut and (share := float(found.row.get("truncated") or 0.0)) >= _SHOWN_CUT else ""
    return Entry(text, number, wording.number(found.value, found.unit, signed=signed), bounds, found, words, asked=True)


def _stands(found: Sequence[Found]) -> str:
    """Say which models, contexts and budgets our numbers are of."""
    words = (("model", wording.model_title), ("context", wording.tokens), ("budget_words", str))
    parts = []
    for column, say in words:
        values = dict.fromkeys(say(f.row[column]) for f in found if not wording.missing(f.row.get(column)))
        if 0 < len(values) <= 4:
            parts.append(f"{column.removesuffix('_words')} {', '.join(values)}")
    return "; ".join(parts)


def _key(paper: Declaration, key: str, value: object) -> str:
    if key == "model":
        return paper.models.get(str(value), str(value))
    if wording.card(str(value)):
        return wording.method_title(str(value))
    if key == "budget":
        return wording.budget(str(value))
    if isinstance(value, int):
        return wording.tokens(value) if key in ("context", "generated", "prefill") else f"{value:,}"
    return wording.column_title(str(value))


def _title(paper: str, name: str, section: str) -> str:
    """Return a table's title with its place in the paper; a bare number is of the notes on it and is left out."""
    title = wording.TITLES["tables"].get(paper, {}).get(name) or wording.column_title(name)
    return f"{title} ({section})" if section[:1].isalpha() else title


def key_figure(site: Site, page: Page, name: str, tables: Sequence[Mirror]) -> Figure | None:
    """Return the paper (grey) and ours over one column of a table, where ``titles.yaml`` names both.

    Its title is the sentence there, with both numbers of the row that it is about.
    """
    wanted = wording.TITLES["key_figures"].get(name)
    table = next((t for t in tables if wanted and t.name == wanted["table"]), None)
    if table is None:
        return None
    head = next(at for at, head in enumerate(table.columns) if ", ".join(head) == wanted["column"])
    rows = {
        " · ".join(keys): cells[head]
        for keys, cells in table.rows
        if cells[head].found and cells[head].number is not None and wanted.get("among", "") in " · ".join(keys)
    }
    if len(rows) < _FEWEST or wanted["row"] not in rows:
        return None
    names = (zip(table.keys, keys.split(" · "), strict=True) for keys in rows)
    frame = pd.DataFrame(
        [(c.number, c.found.value, c.found.low, c.found.high) for c in rows.values() if c.found],
        columns=["print", "ours", "low", "high"],
    ).assign(family=wording.family(site.papers[name].method))
    frame.insert(0, "name", [" · ".join(f"{head} {key}" for head, key in parts) for parts in names])
    about = rows[wanted["row"]]
    title = wanted["says"].format(ours=about.ours, paper=about.printed)
    axis = f"{table.title}: {wanted['column']}"
    return site.figure(page, "key", title, charts.dumbbells(frame, axis), frame, "Grey: the paper. Colour: here.")


def curves(site: Site, page: Page, name: str, tables: Sequence[Mirror]) -> Figure | None:
    """Return our numbers of the paper's curves, a line a row over columns that are numbers of tokens.

    ``titles.yaml`` names the table and the rows; all may be of one family, so that each line has dashes of its own.
    """
    wanted = wording.TITLES["curves"].get(name)
    table = next((t for t in tables if wanted and t.name == wanted["table"] and t.measured), None)
    if table is None:
        return None
    shown = dict(zip(wanted["rows"], charts.DASHES, strict=False))
    frame = pd.DataFrame(
        {
            "name": " · ".join(keys), "x": int(head[0]), "y": cell.found.value, "low": cell.found.low,
            "high": cell.found.high, "family": wording.family(site.papers[name].method),
            "dash": shown[cell.found.variant],
        }
        for keys, cells in table.rows
        for head, cell in zip(table.columns, cells, strict=True)
        if cell.found and cell.found.variant in shown
    )  # fmt: skip
    last = frame[frame.x == frame.x.max()].sort_values("y").name
    title = f"{table.title}: {last.iloc[0]} ends lowest, {last.iloc[-1]} highest"
    spec = charts.along_lines(frame, len(table.columns), wanted["x"], wanted["y"], low=0.0)
    note = f"Ours: {table.stands}. Bands: 95 % intervals. The paper's curves have no numbers."
    return site.figure(page, "curves", title, spec, frame, note)


def pairs(site: Site, paper: Declaration) -> dict[str, list[dict[str, str]]]:
    """Return the comparisons that the paper asks for beside those with Full, where intervals decide, by place.

    A pair that is asked for both ways stands once, as it was first asked for. Where runs answer the paper's claims, the
    pairs are theirs.
    """
    out: dict[str, list[dict[str, str]]] = {}
    told = set[tuple[Any, ...]]()
    own = {claim.run for claim in paper.claims} & {run.name for run in site.runs}
    for run in (run for run in site.runs if not own or run.name in own):
        for request in paper.pairs if len(run.comparisons) else ():
            rows = run.comparisons[run.comparisons.a.isin(request.a) & (run.comparisons.b == request.b)]
            if rows.empty or (request.b == "full" and not request.b_model):
                continue
            rows = rows[
                (rows.model == (request.a_model or rows.model)) & (rows.b_model == (request.b_model or rows.model))
            ]
            rows = rows[(rows.task == "all") | (rows.groupby("suite").task.transform("nunique") == 1)]
            rows = rows[rows.context == rows.groupby("suite").context.transform("max")]
            rows = rows[rows.budget == rows.groupby(["a", "model", "suite"]).budget.transform(middle)]
            # Chosen before what the interval says, so that every rival stands at the same budget.
            for r in rows.pipe(each):
                sides = frozenset([(r.a, r.model, r.budget), (r.b, r.b_model, r.b_budget)])
                if (pair := (run.name, r.suite, r.task, r.context, sides)) in told:
                    continue
                told.add(pair)
                if r.verdict not in ("within", "worse"):
                    continue
                beside = "" if r.b_budget in (r.budget, "full") else f", B {wording.budget(r.b_budget)}"
                models = " against ".join(map(wording.model_title, dict.fromkeys([r.model, r.b_model])))
                place = (
                    f"{wording.task_title(r.suite, r.task)}; {models}, "
                    f"{wording.tokens(r.context)} tokens, budget {wording.budget(r.budget)}{beside}; n = {int(r.n)}; "
                    f"{r.unit}"
                )
                out.setdefault(place, []).append({
                    "a": run.title(r.a), "b": run.title(r.b), "verdict": r.verdict,
                    "difference": wording.number(r.difference, r.unit, signed=True),
                    "interval": wording.interval(r.low, r.high, r.unit),
                })  # fmt: skip
    return out
