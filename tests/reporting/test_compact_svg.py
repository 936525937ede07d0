"""A drawing made small paints the same: every stroke, mark and word in the same style and place, strokes in order."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from matplotlib.path import Path

from longdecode.reporting.compact_svg import compact
from longdecode.reporting.svg_path import circle, line, points, shorten

DARK = {"#094bcd": "#2e75e4", "#ffffff": "#14171b"}


@pytest.fixture(scope="module")
def drawn() -> str:
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "x"}):
        figure = Figure(figsize=(4, 2))
        for panel in range(2):
            axes = figure.add_axes((0.1 + 0.5 * panel, 0.2, 0.35, 0.6), gid=f"panel{panel}")
            axes.vlines([1, 2, 3], [0.1, 0.2, 0.3], [0.5, 0.6, 0.7], color="#094bcd", alpha=0.5)
            axes.plot([1, 2, 3], [0.3, 0.4, 0.5], marker="o", markerfacecolor="#ffffff", color="#094bcd")
            axes.bar([1, 2], [0.2, 0.1], color="#ffffff")
            axes.set_title('a < "b" & c')
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return re.sub(r"(<svg [^>]*>)", r"\1<style>text{fill:red}</style>", text.getvalue(), count=1)


def _styles(root: ET.Element) -> dict[str, str]:
    """Each class with all that the light style sheet says of it."""
    sheet = "".join(element.text or "" for element in root.iter() if element.tag.endswith("style")).split("@media")[0]
    found: dict[str, list[str]] = {}
    for selectors, parts in re.findall(r"((?:\.\w+,?)+)\{([^}]*)\}", sheet):
        for name in selectors.replace(".", "").split(","):
            found.setdefault(name, []).extend(parts.split(";"))
    return {name: ";".join(parts) for name, parts in found.items()}


def _painted(svg: str) -> list[tuple[object, ...]]:
    """Resolve every subpath, mark and word that shows to its style, place and clip."""
    root = ET.fromstring(re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL).replace("xlink:href", "href"))
    classes = _styles(root)
    named = {element.attrib["id"]: element for element in root.iter() if "id" in element.attrib}

    def walk(element: ET.Element, style: str, clip: str) -> Iterator[tuple[object, ...]]:
        names = element.attrib.get("class", "").split()
        own = element.attrib.get("style") or ";".join(classes.get(name, "") for name in names)
        parts = re.sub(r"\b0\.", ".", own.replace(" ", "")).split(";")
        parts = [part for part in parts if part != "stroke-linejoin:round"]  # what the whole drawing says
        marker = next((part[12:-1] for part in parts if part.startswith("marker:url(")), "")
        style = ";".join(sorted({part for part in parts if part and not part.startswith("marker:")})) if own else style
        clip = element.attrib.get("clip-path", clip)
        kind = element.tag.rpartition("}")[2]
        if kind == "path":
            box = named[clip[5:-1]][0].attrib if clip else {}
            limits = tuple(round(float(box[name])) for name in ("width", "height")) if box else ()
            lines = _vertices(element.attrib["d"])
            if style != "fill:none":
                yield from ((kind, style, limits, *vertices) for vertices in lines)
            for x, y in (vertex for vertices in lines for vertex in vertices if marker):
                (mark,) = named[marker]
                yield from walk(ET.Element("use", mark.attrib | {"x": str(x), "y": str(y)}), "", clip)
        elif kind == "use":
            mark, place = named[element.attrib["href"][1:]], (float(element.attrib["x"]), float(element.attrib["y"]))
            (found,) = walk(mark, style, "")
            if len(found) == 5:  # a straight line, however it is drawn
                yield *found[:3], *((x + place[0], y + place[1]) for x, y in found[3:])
            else:
                yield kind, style, found, *place
        elif kind == "text":
            yield kind, style, float(element.attrib["x"]), float(element.attrib["y"]), "".join(element.itertext())
        elif kind not in ("defs", "marker"):
            for child in element:
                yield from walk(child, style, clip)

    return list(walk(root, "", ""))


def _vertices(outline: str) -> list[list[tuple[float, float]]]:
    """Read an outline's commands, absolute or relative, into the places that each subpath names.

    Of a circle in arcs, those of matplotlib's.
    """
    if arc := re.fullmatch(r"m0 ?([\d.]+)a.*z", outline):
        return [[(float(arc[1]) * x, -float(arc[1]) * y) for x, y in Path.unit_circle().vertices[:-1]]]
    tokens = re.findall(r"[A-Za-z]|-?(?:\d+\.?\d*|\.\d+)", outline)
    found: list[list[tuple[float, float]]] = []
    x = y = 0.0
    letter = ""
    while tokens:
        letter = tokens.pop(0) if tokens[0].isalpha() else {"m": "l", "M": "L"}.get(letter, letter)
        if letter in "zZ":
            x, y = found[-1][0]
            continue
        if letter in "mM":
            found.append([])
        base = (x, y) if letter.islower() else (0.0, 0.0)
        for _ in range({"c": 3, "q": 2}.get(letter.lower(), 1)):
            x = base[0] + float(tokens.pop(0)) if letter not in "vV" else x
            y = base[1] + float(tokens.pop(0)) if letter not in "hH" else y
            found[-1].append((x, y))
    return found


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def test_the_same_is_painted_in_the_same_order_from_a_quarter(drawn: str) -> None:
    small = compact(drawn, DARK)
    assert len(small) < 0.35 * len(drawn) and compact(drawn, DARK) == small
    assert "marker:url(#m0)" in small and small.count("<use ") == 1 < drawn.count("<use ")
    # The words of an axis may come after all its strokes.
    before, after = (sorted(_painted(svg), key=lambda part: part[0] == "text") for svg in (drawn, small))
    assert len(before) == len(after) > 40
    for old, new in zip(before, after, strict=True):
        for was, now in zip(_flat(old), _flat(new), strict=True):
            assert abs(was - now) < 0.0501 if isinstance(was, float) and isinstance(now, float) else was == now


def test_every_light_colour_has_its_dark_one_and_panels_keep_their_names(drawn: str) -> None:
    small = compact(drawn, DARK)
    light, dark = small.split("@media (prefers-color-scheme: dark)")
    for kind in ("fill", "stroke"):
        for colour, night in DARK.items():
            by_day, by_night = (
                re.findall(rf"((?:\.\w+,?)+)\{{{kind}:{shade}", sheet)
                for sheet, shade in ((light, colour), (dark, night))
            )
            assert by_day == by_night
    assert "stroke:#094bcd" in light and "style=" not in small
    assert [f'<g id="panel{place}">' in small for place in range(2)] == [True, True]


def test_lines_without_a_finite_point_are_drawn_as_nothing() -> None:
    path = '<path {}clip-path="url(#a)" style="fill: none; stroke: #094bcd"/>'
    drawing = '<svg xmlns="http://www.w3.org/2000/svg"><style>text{{fill:red}}</style><g>{}</g></svg>'
    small = compact(drawing.format(path.format("") * 2 + path.format('d="M 1 2 L 3 4 " ')), DARK)
    assert re.findall(r' d="([^"]*)"', small) == ["m1 2 2 2"]


def test_steps_add_up_to_the_rounded_places() -> None:
    """Each vertex is rounded by itself: fifty steps of a third end where the last place is."""
    places = [(k / 3, 100 - k * k / 7) for k in range(50)]
    ((start, *_, end),) = _vertices(shorten(line(places), 1))
    assert start == (0.0, 100.0) and end == pytest.approx((round(49 / 3, 1), round(100 - 49 * 49 / 7, 1)), abs=1e-9)
    assert (
        shorten("M 0.5 -0.25 L 0.5 3 L 4.5 3 Q 5 5 6 6 C 1 1 2 2 3 3 z", 2) == "m.5-.25v3.25h4q.5 2 1.5 3c-5-5-4-4-3-3z"
    )
    assert shorten("M 0 0 A 1 1 0 0 1 2 2", 1) == "M 0 0 A 1 1 0 0 1 2 2"
    assert circle("M 0 2 C 1 1 0 0 2 0 z") == "" == circle("M0 1L2 3z")
    assert points("M0 1L2 -3.5") == [(0.0, 1.0), (2.0, -3.5)] and points("M0 1L2 3z") == points("M0 1M2 3") == []
