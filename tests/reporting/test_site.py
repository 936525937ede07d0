"""The site as a whole: links lead somewhere, nothing is empty or said twice, and it stays small."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest

from longdecode.reporting import looks, wording
from longdecode.reporting.build import build
from longdecode.reporting.runs import Run
from site_pages import Parsed, parsed

WORDS, BYTES = 60_000, 4_000_000
TEMPLATES = Path(looks.__file__).parent / "templates"


def test_every_link_leads_to_a_file_and_a_place(site: Path, pages: dict[str, Parsed]) -> None:
    for page in pages.values():
        for link, _ in page.links:
            if link.startswith("http"):
                continue
            file, _, place = link.partition("#")
            target = (site / (file or f"{page.name}.html")).resolve()
            assert target.is_file(), (page.name, link)
            if place:
                assert place in pages[target.stem].ids, (page.name, link)


def test_names_of_places_are_unique(pages: dict[str, Parsed]) -> None:
    for page in pages.values():
        own = [name for name in page.ids if not name.startswith("clip")]
        assert len(own) == len(set(own)), (page.name, collections.Counter(own).most_common(1))


def test_all_kinds_of_page_are_there_and_none_is_empty(pages: dict[str, Parsed]) -> None:
    assert {name.partition("-")[0] for name in pages} == {"index", "compare", "paper", "method", "task", "trust"}
    papers = {name.partition("-")[2] for name in pages if name.startswith("paper-")}
    assert papers == {"lychee", "retro", "nosa", "tokenswift"}
    assert all(len(page.text.split()) > 120 for page in pages.values())


def test_no_sentence_stands_on_two_pages(pages: dict[str, Parsed]) -> None:
    """Sentences of eight words and more, outside tables; each card's words on its method are its own."""
    seen: dict[str, set[str]] = collections.defaultdict(set)
    for page in pages.values():
        for block in page.blocks:
            for sentence in re.split(r"(?<=[.?!]) ", block):
                if len(sentence.split()) >= 8 and sentence.endswith("."):
                    seen[sentence].add(page.name)
    assert not {s: names for s, names in seen.items() if len({n.partition("-")[0] for n in names}) > 1}


def test_pages_have_titles_and_no_names_of_tables(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    names = {v for run in committed.values() for v in run.titles if "_" in v and v != run.title(v)}
    names |= {t for run in committed.values() if len(run.summary) for t in run.summary.suite if "_" in t}
    for page in pages.values():
        heads = [cell for row in page.all_rows for cell in row[:1]] + [b for b in page.blocks if len(b.split()) < 12]
        assert not {cell for cell in heads if cell in names}, page.name
    assert not re.search(r"\b(target|stretch|standing|subject)s?\b", pages["index"].text.lower())


def test_each_undecided_recommendation_says_so_with_its_prompts(committed: dict[str, Run], tmp_path: Path) -> None:
    index = parsed(build(committed["real"].folder, tmp_path / "out"))  # of a small model alone
    cards = re.findall(r'<article class="card".*?</article>', index.html, re.DOTALL)
    assert len(cards) > 3
    for card in cards:
        marks = re.findall(r'class="v ([a-z-]+)"', card)
        if "worse" in marks or "cannot-tell" in marks:
            assert "Cannot tell" in card and "Our pick" not in card and "worse" not in marks
        elif marks:
            assert "Our pick" in card
    assert re.search(r"\(cannot tell, \d+ prompts\)", index.text)


def test_pages_read_without_scripts(pages: dict[str, Parsed]) -> None:
    for page in pages.values():
        assert len(re.findall(r'class="chart"[^>]*>\s*<svg', page.html)) == page.html.count('class="chart"')
    assert pages["compare"].html.count("<tr id=") > 200
    assert " hidden" not in re.sub(r'<article[^>]*>|aria-hidden="true"', "", pages["compare"].html)


def test_text_in_charts_is_twelve_pixels_or_more(pages: dict[str, Parsed]) -> None:
    sizes = [float(s) for page in pages.values() for s in re.findall(r'<text[^>]*font-size="([\d.]+)px"', page.html)]
    assert len(sizes) > 300 and min(sizes) >= 12
    style = (TEMPLATES / "site.css").read_text(encoding="utf-8")
    assert min(float(s) for s in re.findall(r"(?:font-size:|font:)([\d.]+)px", style)) >= 12


def test_the_site_is_offline_and_small(site: Path, pages: dict[str, Parsed]) -> None:
    outer = re.compile(r'src="http|rel="stylesheet" href="http')
    assert not any(outer.search(page.html) for page in pages.values())
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < BYTES
    marks = re.compile(r"<(script|style).*?</\1>|<[^>]+>", re.DOTALL)
    words = sum(len(marks.sub(" ", page.html).split()) for page in pages.values())
    assert 20_000 < words < WORDS


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", [*looks.FAMILIES, "ink", "muted", "print"])
def test_colours_can_be_read_in_light_and_dark(name: str) -> None:
    both = {**looks.FAMILIES, **looks.INK}
    assert all(contrast(both[name][side], both["ground"][side]) >= 4.5 for side in (0, 1))


def test_a_family_has_one_colour_and_mark_and_every_card_has_a_family() -> None:
    assert set(looks.FAMILIES) == set(looks.FAMILY_TITLES) == set(looks.SHAPES)
    assert len(set(looks.FAMILIES.values())) == len(looks.FAMILIES)
    one_each = ("lychee", "quest", "snapkv", "shadowkv", "tokenswift", "full_int4", "full")
    assert [wording.family(method) for method in one_each] == list(looks.FAMILIES)


def test_names_on_the_chart_cover_neither_marks_nor_each_other() -> None:
    canvas = looks.Canvas("wide", (0.5, 3.0), (-3.0, 105.0), [[(1.2, 0.0), (1.3, 1.0)], [(1.25, 0.5)], [(2.0, 50.0)]])
    assert canvas.place("Quest", [(1.3, 1.0)]) and canvas.place("RetroAttention", [(1.25, 0.5)])
    boxes = canvas.boxes
    for i, a in enumerate(boxes):
        assert all(a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3] for b in boxes[i + 1 :])
    for x, y in canvas.marks:
        assert not any(b[0] < x < b[2] and b[1] < y < b[3] for b in boxes)


def test_a_name_without_room_is_left_out() -> None:
    canvas = looks.Canvas("narrow", (0.5, 3.0), (-3.0, 105.0), [[(1.0, 1.0)]])
    canvas.boxes.append((0, 0, 1000, 1000))
    assert canvas.place("Quest", [(1.0, 1.0)]) is None
