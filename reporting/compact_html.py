"""Make a page small: no end tag that a parser supplies by itself, no class that every cell of a column repeats.

A table whose rows are all first of their group says so itself, in the class ``each``; one whose columns of numbers all
have their heads on the right, in the class ``h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_COLUMN = {"num": "n", "bounds": "b", "num published": "p", "source": "s", "why": "w", "nowrap": "l"}
"""Classes of cells that a table names for a whole column: by this letter and the column's number."""
_HEADED, _NUMBERS = ("num", "num published"), ' class="num"'
"""Classes of the cells of columns whose head has the class of numbers."""
_SPAN = re.compile(r" (?:col|row)span=")
_VERBATIM = re.compile(r"(<pre\b.*?</pre>)", re.DOTALL)
_TABLE = re.compile(r"<table\b([^>]*)>(.*?)</table>", re.DOTALL)
_ROW = re.compile(r"(<tr\b[^>]*>)(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<(t[dh])\b([^>]*)>(.*?)</\1>", re.DOTALL)
_FIRST, _CONTEXT = '<tr class="first">', '<tr class="context">'
_SUPPLIED = re.compile(r"</(?:tbody|thead)>")
_ITEM_END = re.compile(r"</li>(?=<li\b|</[ou]l>)")
"""Not where space follows, which is seen between items of one line and not inside them."""
_NAMES = re.compile(r'<table\b[^>]*? class="?([^">]*)')
_TAG = re.compile(r"<[a-z][^<>]*>")
_QUOTED = re.compile(r'="([^\s"\'=<>`]*[^\s"\'=<>`/])"(?=[\s>])')

Cells = list[tuple[str, str, str]]
"""Tag, attributes and contents of each cell of a row."""


def compact(page: str) -> str:
    """Return a page that a browser reads as the same elements, in fewer bytes; its styles need `column_rules`.

    Args:
        page: HTML whose elements are all closed and whose attributes are all in double quotes; tables do not nest.
    """
    parts = _VERBATIM.split(page)
    for place, part in enumerate(parts[::2]):
        parts[2 * place] = _ITEM_END.sub("", _TABLE.sub(_table, re.sub(r"\s*\n\s*", "\n", part)))
    whole = "".join(parts).replace("&#39;", "'")
    return _TAG.sub(lambda tag: _QUOTED.sub(r"=\1", tag[0]), whole)


def column_names(page: str) -> set[str]:
    """Return what the tables of a compact page call their columns, ``n3`` where the third holds numbers."""
    letters = "".join(_COLUMN.values())
    return {name for found in _NAMES.findall(page) for name in found.split() if re.fullmatch(rf"[{letters}]\d+", name)}


def column_rules(names: Iterable[str], style: str) -> str:
    """Return the rules that style named columns, up to a cell that spans columns.

    Args:
        names: as `column_names` returns them.
        style: the style sheet that has the rule of each class, one a line.
    """
    rules = []
    for name, letter in _COLUMN.items():
        columns = sorted(int(found[1:]) for found in names if found[0] == letter)
        places = [f".{letter}{k} td:nth-child({k}):not([colspan], [colspan] ~ td)" for k in columns]
        parts = [rule for kind in name.split() for rule in re.findall(rf"^(?:td)?\.{kind} {{ (.*) }}$", style, re.M)]
        rules += [f"{', '.join(places)} {{ {' '.join(parts)} }}"] if places else []
    heads = [f".h.{letter}{k} thead th:nth-child({k})" for letter, k in sorted(_numeric(names))]
    rules += [f"{', '.join(heads)} {{ text-align: right; }}"] if heads else []
    return "\n".join(rules) + "\n"


def _table(found: re.Match[str]) -> str:
    rows = [_CELL.findall(row) for _, row in _ROW.findall(found[2]) if not _spans(row)]
    widest = max(map(len, rows), default=0)
    columns = {k: name for k in range(2, widest + 1) if (name := _shared(rows, k)) in _COLUMN}
    head, tag, inside = found[2].partition("<tbody")
    heads = [_CELL.findall(row) for _, row in _ROW.findall(head)]
    numeric = {k for k, name in columns.items() if name in _HEADED}
    right = len(heads) == 1 and not _SPAN.search(head) and numeric == {
        k for k, (_, attributes, _) in enumerate(heads[0], 1) if k in columns and 'class="num"' in attributes
    }  # fmt: skip
    head = _ROW.sub(lambda row: _right(row, numeric), head) if right else head
    each = set(re.findall(r"<tr\b[^>]*>", inside)) - {_CONTEXT} == {_FIRST}
    inside = inside.replace(_FIRST, "<tr>") if each else inside
    body = _SUPPLIED.sub("", _ROW.sub(lambda row: _row(row, columns), head + tag + inside))
    body = re.sub(r"\s*<(thead|tbody)\b", r"<\1", re.sub(r"\s*<tr\b", "\n<tr", body)).rstrip()
    classes = [
        *re.findall(r'class="([^"]*)"', found[1]),
        *(["each"] if each else []),
        *(["h"] if right and numeric else []),
        *(f"{_COLUMN[name]}{k}" for k, name in columns.items()),
    ]
    others = re.sub(r' class="[^"]*"', "", found[1])
    return f"<table{others}{' class=' + chr(34) + ' '.join(classes) + chr(34) if classes else ''}>{body}\n</table>"


def _right(found: re.Match[str], numeric: set[int]) -> str:
    """Leave the class of numbers out of the heads of columns that have it."""
    cells: Cells = _CELL.findall(found[2])
    return found[1] + "".join(
        f"<{tag}{attributes.replace(_NUMBERS, '') if k in numeric else attributes}>{inside}</{tag}>"
        for k, (tag, attributes, inside) in enumerate(cells, 1)
    ) + "</tr>"  # fmt: skip


def _numeric(names: Iterable[str]) -> set[tuple[str, int]]:
    return {(name[0], int(name[1:])) for name in names for kind in _HEADED if name[0] == _COLUMN[kind]}


def _shared(rows: list[Cells], column: int) -> str:
    """Return the class that all cells of a column have."""
    found = {cells[column - 1][1] for cells in rows if len(cells) >= column and cells[column - 1][0] == "td"}
    return found.pop().removeprefix(' class="').removesuffix('"') if len(found) == 1 else ""


def _row(found: re.Match[str], columns: dict[int, str]) -> str:
    """Leave out the end tags of a row, the space between its cells, and what goes without saying in each."""
    text = found[1]
    cells: Cells = _CELL.findall(found[2])
    heads = all(tag == "th" for tag, _, _ in cells)
    for k, (tag, attributes, inside) in enumerate(cells, 1):
        if heads:  # HTML, section 4.9.12.1: a header without scope is its column's where its row has no data
            attributes = attributes.replace(' scope="col"', "")
        if tag == "td" and k in columns and not _spans(found[2]):
            attributes = ""
        elif tag == "th" and k == 1 and len(cells) > 1:
            attributes = attributes.replace(' scope="row"', "")
        text += f"<{tag}{attributes}>{inside.strip()}"
    return text


def _spans(row: str) -> bool:
    return " colspan=" in row
