"""Parse generated pages as a reader without scripts has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

Maker = Callable[..., Path]
"""Writer of a run's tables (fixture ``folder``)."""
_VOID = {"meta", "link", "br", "input", "img", "use", "circle", "rect", "path", "line"}
_BLOCK = {"p", "li", "dd", "figcaption", "h1", "h2", "h3", "h4"}


@dataclass
class Parsed:
    """A page as a reader without scripts has it: links, names of places, blocks of text, rows of tables."""

    name: str
    html: str
    links: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)
    all_rows: list[list[str]] = field(default_factory=list)
    text: str = ""


class _Reader(HTMLParser):
    def __init__(self, page: Parsed) -> None:
        super().__init__()
        self.page, self.stack, self.texts = page, list[str](), list[list[str]]()
        self.links, self.row, self.words = list[str](), ("", list[str]()), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if named.get("id") and "svg" not in self.stack:
            self.page.ids.append(str(named["id"]))
        if tag == "tr":
            self.row = (str(named.get("id") or ""), [])
        if tag not in _VOID:
            self.stack.append(tag)
            self.texts.append([])
            self.links.append(str(named.get("href") or ""))

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.stack):
            return
        self.words.append(data)
        for texts in self.texts:
            texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID or tag not in self.stack:
            return
        while self.stack:
            ended, texts, link = self.stack.pop(), "".join(self.texts.pop()), self.links.pop()
            words = " ".join(texts.split())
            if ended == "a" and link:
                self.page.links.append((link, words))
            if ended in ("td", "th"):
                self.row[1].append(words)
            if ended == "tr":
                self.page.all_rows.append(self.row[1])
                if self.row[0]:
                    self.page.rows[self.row[0]] = self.row[1]
            if ended in _BLOCK and "svg" not in self.stack:
                self.page.blocks.append(words)
            if ended == tag:
                break
        self.page.text = " ".join("".join(self.words).split())


def parsed(path: Path) -> Parsed:
    """Parse one page."""
    page = Parsed(path.stem, path.read_text(encoding="utf-8"))
    _Reader(page).feed(page.html)
    return page
