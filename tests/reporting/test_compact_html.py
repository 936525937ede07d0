"""A page made small reads the same: every element, attribute and word, and in every cell the style of its class."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from longdecode.reporting.compact_html import column_names, column_rules, compact

PAGE = """<!DOCTYPE html>
<html lang="en"><body>
<p class="caption">a  <b>c</b>
   d <a href="x/">slash</a> <a href="a=b">e</a> <img src="i.svg" alt=""></p>
<pre class="prompt">two  spaces

 and <mark>lines</mark></pre>
<div class="scroll" tabindex="0" aria-label="Two words">
<table class="verdicts" id="t">
<thead><tr><th scope="col">M</th><th scope="col" class="num">n <i>ms</i></th><th scope="col">It&#39;s</th>
<th scope="col" class="num">k</th><th scope="col">w</th><th scope="col" class="num">n</th></tr></thead>
<tbody>
<tr class="context"><th colspan="6" scope="rowgroup">4,096 tokens</th></tr>
<tr class="first" id="t.full"><th scope="row"><a href="m.html">full</a></th>
<td class="num">1 <sup>2</sup></td><td class="bounds">[1, 2]</td><td class="num">3</td><td>why</td>
<td class="num">9</td>
</tr>
<tr><th scope="row">quest</th><td class="num"></td><td class="bounds"></td><td class="why">4</td><td></td>
<td class="num">
8</td></tr>
</tbody>
<tbody>
<tr><th scope="row">tidal</th><td class="num">5</td><td class="hole" colspan="3">oom</td><td class="num">7</td></tr>
</tbody>
</table>
</div>
<table><tbody><tr><th scope="row">alone</th></tr></tbody></table>
<ul><li>one</li><li><a href="t.html">two</a></li></ul><ol><li>three</li>
<li>four</li></ol>
<table><thead><tr><td></td><th scope="col">Q</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>
<table><thead><tr><th scope="col">M</th></tr></thead><tbody><tr class="context"><th>2</th></tr>
<tr class="first"><th scope="row">each</th></tr><tr class="first"><th scope="row">other</th></tr></tbody></table>
</body></html>
"""
IMPLIED = {
    "td": ("td", "th"), "th": ("td", "th"), "tr": ("td", "th", "tr"), "tbody": ("td", "th", "tr", "thead", "tbody"),
    "li": ("li",), "/ul": ("li",), "/ol": ("li",), "/table": ("td", "th", "tr", "thead", "tbody"),
}  # fmt: skip


class Read(HTMLParser):
    """Reads a page as a browser does: elements with attributes and words; columns' styles put on the cells."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.seen: list[object] = []
        self.columns: dict[int, str] = {}
        self.place, self.spanned, self.each, self.headed = 0, False, False, False
        self.feed(page)

    def _close(self, tag: str) -> None:
        while self.open and self.open[-1] in IMPLIED.get(tag, ()):
            self.seen.append("/" + self.open.pop())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._close(tag)
        found = {name: value for name, value in attrs if (name, value) not in (("scope", "row"), ("scope", "col"))}
        if tag == "table":
            names = str(found.pop("class", "")).split()
            self.columns = {int(n[1:]): {"n": "num", "b": "bounds"}[n[0]] for n in names if re.fullmatch(r"[nb]\d+", n)}
            found["class"] = " ".join(n for n in names if not re.fullmatch(r"[nb]\d+|each|h", n))
            self.each, self.headed = "each" in names, "h" in names
        if tag == "tr":
            if self.each and "tbody" in self.open:
                found.setdefault("class", "first")
            self.place, self.spanned = 0, False
        if tag in ("td", "th"):
            self.place += 1
            if tag == "th" and self.headed and "thead" in self.open and self.columns.get(self.place) == "num":
                found["class"] = "num"
            self.spanned |= tag == "td" and "colspan" in found
            if tag == "td" and not self.spanned and self.place in self.columns:
                assert found.get("class") in (None, self.columns[self.place])
                found["class"] = self.columns[self.place]
        self.seen.append((tag, sorted((name, value or "") for name, value in found.items() if value)))
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._close(f"/{tag}")
        assert self.open.pop() == tag
        self.seen.append("/" + tag)

    def handle_data(self, data: str) -> None:
        text = data if "pre" in self.open else " ".join(data.split())
        if text:
            self.seen.append(text)


def test_the_same_elements_words_and_styles_are_read_from_fewer_bytes() -> None:
    small = compact(PAGE)
    assert Read(small).seen == Read(PAGE).seen and len(small) < 0.75 * len(PAGE)
    assert small.count('class="each"') + small.count("class=each") == 1 and small.count("class=first") == 1
    assert (
        small.count("scope=col>") == 1
        and "<td><th scope=col>Q" in small
        and re.findall("</li>.", small, re.DOTALL) == ["</li>\n"]
    )
    assert "</td>" not in small and small.count('class="num"') == small.count("class=bounds") == 0
    assert small.count("class=num") == 4, "a mixed column's and its head's, and the row's whose cell spans columns"


def test_each_named_column_has_the_rules_of_its_class() -> None:
    names = column_names(compact(PAGE))
    assert names == {"n2", "b3", "n6"}
    style = (
        "x { color: red; }\n.num { text-align: right; }\ntd.published { background: blue; }\n.bounds { color: grey; }\n"
    )
    cell = "td:nth-child({0}):not([colspan], [colspan] ~ td)"
    two, three, six = (f".{name} {cell.format(name[1:])}" for name in ("n2", "b3", "n6"))
    head = ".h.{0}{1} thead th:nth-child({1})"
    heads = f"{head.format('n', 2)}, {head.format('n', 6)} {{ text-align: right; }}\n"
    assert column_rules(names, style) == f"{two}, {six} {{ text-align: right; }}\n{three} {{ color: grey; }}\n{heads}"
    right = f"{head.format('p', 4)} {{ text-align: right; }}\n"
    assert column_rules({"p4"}, style) == f".p4 {cell.format(4)} {{ text-align: right; background: blue; }}\n{right}"
