"""Make a drawing small: one class for each style, positions to a tenth of a point, strokes of one line in one path."""

from __future__ import annotations

import functools
import re
import string
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise

from longdecode.reporting.svg_path import circle, line, points, shorten

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"^#(.+)$|^url\(#(.+)\)$")
_NUMBER = re.compile(r"-?\d+\.\d+")
_KEPT = ("title", "desc")
_ENDS = 2
"""Vertices of a straight line."""
_FEWEST = 2
"""Neighbours that are worth drawing, or clipping, together."""
_RUN = 3
"""Neighbours of one class that are worth a group."""
_INHERITED = "svg{stroke-linejoin:round}"
"""Attributes that matplotlib sets on every element, set once: a line's end is blunt by default."""
_MARKER = {"markerUnits": "userSpaceOnUse"}
_SEEN_WHOLE = "marker{overflow:visible}"


def compact(svg: str, dark: Mapping[str, str]) -> str:
    """Return the same picture in fewer bytes.

    Args:
        svg: a drawing by matplotlib; identifiers that nothing refers to are dropped, apart from those of title,
            description, views and panels.
        dark: for each light colour, the one where the reader prefers a dark page.
    """
    root = ET.fromstring(svg)
    root.attrib.pop("version", None)
    classes: dict[str, str] = {}
    for element in root.iter():
        attributes = element.attrib
        if _HREF in attributes:
            attributes["href"] = attributes.pop(_HREF)
        if style := attributes.pop("style", "").replace(": ", ":").replace("; ", ";"):
            attributes["class"] = classes.setdefault(re.sub(r"\b0\.", ".", style), f"s{len(classes)}")
        if attributes.get("transform", "").startswith("rotate(-0 "):
            del attributes["transform"]
        _round(element)
    _name(root)
    _gather(root)
    markers = Markers()
    unseen = {name for style, name in classes.items() if style == "fill:none"}
    symbols = {f"#{element.attrib['id']}": element for element in root.iter() if "id" in element.attrib}
    ticks = {symbol.attrib["class"] for symbol in symbols.values() if _is_tick(symbol)}
    strokes = ticks | {name for style, name in classes.items() if "fill:none" in style}
    apart = {name for style, name in classes.items() if re.search(r"(^|;)opacity:", style)}
    for change in (
        functools.partial(_drop, unseen=unseen), _lift, _splice, markers.set, _flatten,
        functools.partial(_draw_ticks, symbols=symbols), functools.partial(_sort, strokes=strokes),
        functools.partial(_join, strokes=strokes), _clip_together, functools.partial(_class_together, apart=apart),
    ):  # fmt: skip
        for element in list(root.iter()):
            change(element)
    for element in root.iter():
        if "d" in element.attrib:
            element.set("d", circle(element.attrib["d"]) or shorten(element.attrib["d"], _places(element)))
    root.extend(markers.definitions())
    sheet = root.find(f"{{{_SVG}}}style")
    if sheet is not None:
        names = _short_names(root)
        styles = {style: names[name] for style, name in (classes | markers.styles()).items() if name in names}
        seen = _SEEN_WHOLE if root.find(f"{{{_SVG}}}marker") is not None else ""
        sheet.text = f"{sheet.text or ''}{_INHERITED}{seen}{_rules(styles, dark)}"
    return _serialised(root)


class Markers:
    """Draws the marks of a line at its vertices, instead of each in an element of its own.

    Source: SVG 2, section 13.7: a marker inherits nothing from the line that carries it, so there is one for each
    symbol and style.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def set(self, parent: ET.Element) -> None:
        """Replace each group of like marks in an element by the line before it, or by one that is not stroked."""
        for place, group in reversed(list(enumerate(parent))):
            symbols = {child.attrib.get("href", "") for child in group if set(child.attrib) == {"x", "y", "href"}}
            if len(group) < _FEWEST or len(symbols) != 1 or set(group.attrib) - {"class", "clip-path"}:
                continue
            if any(set(child.attrib) != {"x", "y", "href"} for child in group):
                continue
            vertices = [(float(child.attrib["x"]), float(child.attrib["y"])) for child in group]
            name = self._names.setdefault((symbols.pop(), group.attrib.pop("class", "")), f"m{len(self._names)}")
            before = parent[place - 1] if place else group
            clip = group.attrib.get("clip-path")
            if points(before.attrib.get("d", "")) == vertices and before.attrib.get("clip-path") == clip:
                before.set("class", f"{before.attrib.get('class', '')} {name}".strip())
                parent.remove(group)
            else:
                parent[place] = ET.Element(f"{{{_SVG}}}path", {"d": line(vertices), **group.attrib, "class": name})

    def definitions(self) -> list[ET.Element]:
        """Return the markers."""
        found = []
        for (symbol, style), name in self._names.items():
            marker = ET.Element(f"{{{_SVG}}}marker", _MARKER | {"id": name})
            ET.SubElement(marker, f"{{{_SVG}}}use", {"href": symbol} | ({"class": style} if style else {}))
            found.append(marker)
        return found

    def styles(self) -> dict[str, str]:
        """Return the style of each class that carries a marker."""
        return {f"fill:none;marker:url(#{name})": name for name in self._names.values()}


def _round(element: ET.Element) -> None:
    """Round places to a tenth."""
    for name in ("x", "y"):
        if name in element.attrib:
            element.set(name, _NUMBER.sub(_shorter, element.attrib[name]))
    if "d" in element.attrib:
        digits = _places(element)
        text = _NUMBER.sub(lambda found: f"{round(float(found[0]), digits):.10g}", element.attrib["d"])
        element.set("d", re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(text.split())))


def _places(element: ET.Element) -> int:
    """Decimal places of an outline: two for marks, which are small, one for the rest."""
    return 2 if "id" in element.attrib else 1


def _shorter(found: re.Match[str]) -> str:
    text = f"{float(found[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _name(root: ET.Element) -> None:
    """Give what is referred to a short name, and take the names of the rest."""
    found = (_REFERENCE.match(value) for element in root.iter() for value in element.attrib.values())
    used = dict.fromkeys(match[1] or match[2] for match in found if match)
    names = {name: name if name.startswith("panel") else f"i{number}" for number, name in enumerate(used)}
    for element in root.iter():
        for key, value in element.attrib.items():
            if match := _REFERENCE.match(value):
                element.set(key, value.replace(match[1] or match[2], names[match[1] or match[2]]))
        name = element.attrib.get("id")
        if name in names:
            element.set("id", names[name])
        elif (
            name is not None and name not in _KEPT and not name.startswith("panel") and not element.tag.endswith("view")
        ):
            del element.attrib["id"]


def _short_names(root: ET.Element) -> dict[str, str]:
    """Rename the classes of all elements, the most frequent shortest, and return the new name of each."""
    counts = Counter(name for element in root.iter() for name in element.attrib.get("class", "").split())
    letters, more = string.ascii_letters, string.ascii_letters + string.digits
    short = [*letters, *(first + second for first in letters for second in more)]
    names = {name: short[place] for place, (name, _) in enumerate(counts.most_common())}
    for element in root.iter():
        if "class" in element.attrib:
            element.set("class", " ".join(names[name] for name in element.attrib["class"].split()))
    return names


def _gather(root: ET.Element) -> None:
    """Put all definitions into the first, apart from the style that `_INHERITED` stands for."""
    parts = [(parent, child) for parent in root.iter() for child in parent if child.tag.endswith("}defs")]
    for parent, child in parts[1:]:
        parts[0][1].extend(child)
        parent.remove(child)
    for _, child in parts[:1]:
        for style in child.findall(f"{{{_SVG}}}style"):
            child.remove(style)


def _lift(group: ET.Element) -> None:
    """Move a class that all marks of a group have to the group."""
    kinds = {child.attrib.get("class") for child in group}
    if group.tag.endswith("}g") and len(kinds) == 1 and "class" not in group.attrib:
        (kind,) = kinds
        if kind and all(child.tag.endswith("use") for child in group):
            group.set("class", kind)
            for child in group:
                del child.attrib["class"]


def _splice(element: ET.Element) -> None:
    """Put the children of groups that say nothing in the place of the group."""
    children: list[ET.Element] = []
    todo = list(element)[::-1]
    while todo:
        child = todo.pop()
        if child.tag.endswith("}g") and not child.attrib:
            todo += list(child)[::-1]
        else:
            children.append(child)
    element[:] = children


def _is_tick(symbol: ET.Element) -> bool:
    return "class" in symbol.attrib and len(points(symbol.attrib.get("d", ""))) == _ENDS


def _draw_ticks(parent: ET.Element, symbols: Mapping[str, ET.Element]) -> None:
    """Draw each mark that is a straight line as a path, which can be joined; a line has nothing to fill."""
    for place, mark in enumerate(list(parent)):
        symbol = symbols.get(mark.attrib.get("href", ""))
        if symbol is not None and _is_tick(symbol) and not set(mark.attrib) - {"x", "y", "href", "class"}:
            x, y = float(mark.attrib["x"]), float(mark.attrib["y"])
            moved = line([(x + dx, y + dy) for dx, dy in points(symbol.attrib["d"])])
            parent[place] = ET.Element(f"{{{_SVG}}}path", {"d": moved, "class": symbol.attrib["class"]})


def _sort(parent: ET.Element, strokes: set[str]) -> None:
    """Put neighbouring strokes, as of an axis, before the words between them."""

    def movable(child: ET.Element) -> bool:
        return _is_text(child) or (child.attrib.get("class") in strokes and "id" not in child.attrib)

    runs = [sorted(run, key=_is_text) if plain else list(run) for plain, run in groupby(parent, key=movable)]
    parent[:] = [child for run in runs for child in run]


def _is_text(element: ET.Element) -> bool:
    return element.tag.endswith("}text")


def _join(element: ET.Element, strokes: set[str]) -> None:
    """Draw neighbouring outlines of one style in one path; a dash pattern begins anew with each part."""
    for before, after in pairwise(list(element)):
        first, second = ({k: v for k, v in path.attrib.items() if k != "d"} for path in (before, after))
        both = before.tag == after.tag and after.tag.endswith("path")
        if both and first == second and "id" not in first and first.get("class") in strokes:
            after.set("d", before.attrib["d"] + after.attrib["d"])
            element.remove(before)


def _flatten(parent: ET.Element) -> None:
    """Put the one mark of a group in the place of the group."""
    for place, group in enumerate(list(parent)):
        if group.tag.endswith("}g") and len(group) == 1 and set(group.attrib) == {"class"}:
            (child,) = group
            if child.tag.endswith("}use") and "class" not in child.attrib:
                child.set("class", group.attrib["class"])
                parent[place] = child


def _drop(element: ET.Element, unseen: set[str]) -> None:
    """Take outlines that are neither filled nor stroked, and lines that have no finite point."""
    for child in list(element):
        shown = child.get("d") and child.get("class") not in unseen
        if child.tag.endswith("}path") and "id" not in child.attrib and not shown:
            element.remove(child)


def _clip_together(parent: ET.Element) -> None:
    """Clip neighbours that share a clip in one group."""
    runs = [(clip, list(run)) for clip, run in groupby(parent, key=lambda child: child.attrib.get("clip-path"))]
    if not any(clip and len(run) >= _FEWEST for clip, run in runs):
        return
    children: list[ET.Element] = []
    for clip, run in runs:
        if clip and len(run) >= _FEWEST:
            group = ET.Element(f"{{{_SVG}}}g", {"clip-path": clip})
            for child in run:
                del child.attrib["clip-path"]
            group.extend(run)
            children.append(group)
        else:
            children += run
    parent[:] = children


def _class_together(parent: ET.Element, apart: set[str]) -> None:
    """Put neighbours of one class into a group that has it; not those that are see-through together otherwise."""

    def kind(child: ET.Element) -> str:
        name = child.attrib.get("class", "")
        plain = child.tag.rpartition("}")[2] in ("path", "text") and "id" not in child.attrib
        return name if plain and name not in apart and not re.search(r"m\d", name) else ""

    if parent.tag.endswith(("}g", "}svg")) and "class" not in parent.attrib:
        children: list[ET.Element] = []
        for name, run in groupby(list(parent), key=kind):
            found = list(run)
            if name and len(found) >= _RUN:
                group = ET.Element(f"{{{_SVG}}}g", {"class": name})
                for child in found:
                    del child.attrib["class"]
                group.extend(found)
                found = [group]
            children += found
        parent[:] = children


def _rules(classes: Mapping[str, str], dark: Mapping[str, str]) -> str:
    light = [(part, name) for style, name in classes.items() for part in style.split(";") if part]
    pairs = [(part.split(":", 1), name) for part, name in light]
    night = [
        (f"{key}:{dark[value]}", name) for (key, value), name in pairs if key in ("fill", "stroke") and value in dark
    ]
    return f"{_grouped(light)}@media (prefers-color-scheme: dark){{{_grouped(night)}}}"


def _grouped(parts: Iterable[tuple[str, str]]) -> str:
    """Write each part of a style once, with all classes that have it."""
    names: dict[str, list[str]] = {}
    for part, name in parts:
        names.setdefault(part, []).append(f".{name}")
    together: dict[str, list[str]] = {}
    for part, found in names.items():
        together.setdefault(",".join(found), []).append(part)
    return "".join(f"{selector}{{{';'.join(found)}}}" for selector, found in together.items())


def _serialised(root: ET.Element) -> str:
    for element in root.iter():
        if not element.tag.endswith("tspan"):
            element.tail = ""
        if len(element) and not (element.text or "").strip():
            element.text = ""
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode").replace(" />", "/>") + "\n"
