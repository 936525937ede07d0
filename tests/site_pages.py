"""Parse generated pages as a reader without scripts has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lxml import etree, html

Maker = Callable[..., Path]
"""Writer of a run's tables (fixture ``folder``)."""
_BLOCK = ("p", "li", "dd", "figcaption", "h1", "h2", "h3", "h4")


@dataclass
class Parsed:
    """A page as a reader without scripts has it: links, names of places, blocks of text, rows of tables."""

    name: str
    html: str

    def __post_init__(self) -> None:
        tree = html.fromstring(self.html)
        etree.strip_elements(tree, "script", "style", with_tail=False)
        self.text = _words(tree)
        self.links = [(link.get("href"), _words(link)) for link in tree.iter("a") if link.get("href")]
        rows = {row: [_words(cell) for cell in row.iter("td", "th")] for row in tree.iter("tr")}
        self.all_rows = list(rows.values())
        self.rows = {row.get("id"): cells for row, cells in rows.items() if row.get("id")}
        self.ids = [str(name) for name in tree.xpath("//*[@id][not(ancestor::svg)]/@id")]
        self.blocks = [_words(block) for block in tree.iter(*_BLOCK) if not any(block.iterancestors("svg"))]


def _words(element: html.HtmlElement) -> str:
    return " ".join(element.text_content().split())


def parsed(path: Path) -> Parsed:
    """Parse one page."""
    return Parsed(path.stem, path.read_text(encoding="utf-8"))
