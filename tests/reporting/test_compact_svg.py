"""A drawing made small paints the same: every stroke, mark and word in the same style and place, in order."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from longdecode.reporting.compact_svg import compact

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


def _painted(svg: str) -> list[tuple[object, ...]]:
    """Resolve every subpath, mark and word to its style, place and clip."""
    root = ET.fromstring(re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL).replace("xlink:href", "href"))
    sheet = "".join(element.text or "" for element in root.iter() if element.tag.endswith("style")).split("@media")[0]
    classes = dict(re.findall(r"\.(s\d+)\{([^}]*)\}", sheet))
    named = {element.attrib["id"]: element for element in root.iter() if "id" in element.attrib}

    def walk(element: ET.Element, style: str, clip: str) -> Iterator[tuple[object, ...]]:
        own = element.attrib.get("style") or classes.get(element.attrib.get("class", ""), "")
        style = ";".join(sorted(own.replace(" ", "").split(";"))) if own else style
        clip = element.attrib.get("clip-path", clip)
        kind = element.tag.rpartition("}")[2]
        if kind == "path":
            box = named[clip[5:-1]][0].attrib if clip else {}
            limits = tuple(round(float(box[name])) for name in ("width", "height")) if box else ()
            for part in re.findall(r"M[^M]*", element.attrib["d"]):
                yield kind, style, limits, *_places(part)
        elif kind == "use":
            mark = named[element.attrib["href"][1:]]
            yield kind, style, *walk(mark, style, ""), *_places(f"{element.attrib['x']} {element.attrib['y']}")
        elif kind == "text":
            yield kind, style, *_places(f"{element.attrib['x']} {element.attrib['y']}"), "".join(element.itertext())
        elif kind != "defs":
            for child in element:
                yield from walk(child, style, clip)

    return list(walk(root, "", ""))


def _places(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def test_the_same_is_painted_in_the_same_order_from_a_third(drawn: str) -> None:
    small = compact(drawn, DARK)
    assert len(small) < 0.45 * len(drawn) and compact(drawn, DARK) == small
    before, after = _painted(drawn), _painted(small)
    assert len(before) == len(after) > 40
    for old, new in zip(before, after, strict=True):
        for was, now in zip(_flat(old), _flat(new), strict=True):
            assert abs(was - now) < 0.0501 if isinstance(was, float) and isinstance(now, float) else was == now


def test_every_light_colour_has_its_dark_one_and_panels_keep_their_names(drawn: str) -> None:
    small = compact(drawn, DARK)
    light, dark = small.split("@media (prefers-color-scheme: dark)")
    for kind in ("fill", "stroke"):
        for colour, night in DARK.items():
            names = set(re.findall(rf"\.(s\d+)\{{[^}}]*\b{kind}:{colour}", light))
            assert names == set(re.findall(rf"\.(s\d+)\{{[^}}]*\b{kind}:{night}", dark))
    assert "#094bcd" in light and "style=" not in small
    assert [f'<g id="panel{place}">' in small for place in range(2)] == [True, True]


def test_lines_without_a_finite_point_are_drawn_as_nothing() -> None:
    path = '<path {}clip-path="url(#a)" style="fill: none; stroke: #094bcd"/>'
    drawing = '<svg xmlns="http://www.w3.org/2000/svg"><style>text{{fill:red}}</style><g>{}</g></svg>'
    small = compact(drawing.format(path.format("") * 2 + path.format('d="M 1 2 L 3 4 " ')), DARK)
    assert re.findall(r' d="([^"]*)"', small) == ["M1 2L3 4"]
