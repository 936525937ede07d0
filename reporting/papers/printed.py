"""A paper's published tables as they were read, each number with its mark."""

from __future__ import annotations

from collections.abc import Sequence

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Comparison, compared
from longdecode.reporting.papers.published import Published, Table, short_mark
from longdecode.reporting.wording import budget, short_tokens


def printed_tables(published: Published) -> Sequence[Block]:
    """The marks, then every table, folded away."""
    marks = Cells("Marks of sources.", ("Mark", "What was read"), list(published.marks.items()))
    return [marks, *(_table(published, name, table) for name, table in published.tables.items())]


def printed_only(published: Published, name: str) -> Comparison:
    """Return a published table as rows of a comparison that were not measured."""
    table = published.tables[name]
    rows = []
    for row in table.rows:
        for column in table.columns:
            if row.get(column) is not None:
                of = [_key(published, key, row[key]) for key in table.keys]
                figure = published.figure(name, column, **{key: row[key] for key in table.keys})
                rows.append(compared([*of, *([_words(column)] if len(table.columns) > 1 else [])], figure))
    heads = [_words(key).capitalize() for key in table.keys] + (["Column"] if len(table.columns) > 1 else [])
    return Comparison("In print.", heads, rows, table.unit)


def _table(published: Published, name: str, table: Table) -> Cells:
    heads = [*(_words(key) for key in table.keys), *(_words(column) for column in table.columns), "Mark"]
    rows = []
    for row in table.rows:
        cells = [_key(published, key, row[key]) for key in table.keys]
        for column in table.columns:
            value = row.get(column)
            cells.append(wording.DASH if value is None else wording.number(value, row.get("digits", table.digits)))
        other = [f"{_words(column)}: {mark}" for column, mark in (row.get("marks") or {}).items()]
        rows.append([*cells, "; ".join([short_mark(row["mark"]), *other])])
    numeric = frozenset(range(len(table.keys), len(table.keys) + len(table.columns)))
    caption = f"{table.what} Unit: {table.unit}."
    return Cells(caption, heads, rows, numeric, fold=f"{_words(name)} (section {table.section} of the notes)")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _key(published: Published, key: str, value: object) -> str:
    if key == "model":
        return published.models[str(value)].title
    if key == "budget":
        return budget(str(value))
    if key == "context" and isinstance(value, int):
        return short_tokens(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
