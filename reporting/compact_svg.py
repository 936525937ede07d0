"""Make a drawing small: one class for each style, positions to a tenth of a point, strokes of one line in one path."""

from __future__ import annotations

import functools
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from itertools import pairwise

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"^#(.+)$|^url\(#(.+)\)$")
_NUMBER = re.compile(r"-?\d+\.\d+")
_KEPT = ("title", "desc")


def compact(svg: str, dark: Mapping[str, str]) -> str:
    """Return the same picture in fewer bytes.

    Args:
        svg: a drawing by matplotlib; identifiers that nothing refers to are dropped, apart from those of title,
            description, views and panels.
        dark: for each light colour, the one where the reader prefers a dark page.
    """
    root = ET.fromstring(svg)
    classes: dict[str, str] = {}
    for element in root.iter():
        attributes = element.attrib
        if _HREF in attributes:
            attributes["href"] = attributes.pop(_HREF)
        if style := attributes.pop("style", "").replace(": ", ":").replace("; ", ";"):
            attributes["class"] = classes.setdefault(style, f"s{len(classes)}")
        if attributes.get("transform", "").startswith("rotate(-0 "):
            del attributes["transform"]
        _round(element)
    _name(root)
    outlines = {name for style, name in classes.items() if "fill:none" in style}
    for change in (_lift, _splice, functools.partial(_join, outlines=outlines)):
        for element in list(root.iter()):
            change(element)
    sheet = root.find(f"{{{_SVG}}}style")
    if sheet is not None:
        sheet.text = f"{sheet.text or ''}{_rules(classes, dark)}"
    return _serialised(root)


def _round(element: ET.Element) -> None:
    """Round positions to a tenth, and the outlines of markers, which are small, to a hundredth."""
    places = 2 if "id" in element.attrib and element.tag.endswith("path") else 1

    def shorter(found: re.Match[str]) -> str:
        text = f"{float(found[0]):.{places}f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text

    for name in ("x", "y", "d"):
        if name in element.attrib:
            element.set(name, _NUMBER.sub(shorter, element.attrib[name]))
    if "d" in element.attrib:
        element.set("d", re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(element.attrib["d"].split())))


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


def _join(element: ET.Element, outlines: set[str]) -> None:
    """Draw neighbouring outlines of one style in one path; a dash pattern begins anew with each part."""
    for before, after in pairwise(list(element)):
        first, second = ({k: v for k, v in path.attrib.items() if k != "d"} for path in (before, after))
        both = before.tag == after.tag and after.tag.endswith("path")
        if both and first == second and "id" not in first and first.get("class") in outlines:
            after.set("d", before.get("d", "") + after.get("d", ""))  # a line without a finite point has none
            element.remove(before)


def _rules(classes: Mapping[str, str], dark: Mapping[str, str]) -> str:
    light = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    night = ""
    for style, name in classes.items():
        pairs = (part.split(":", 1) for part in style.split(";") if part)
        changed = [f"{key}:{dark[value]}" for key, value in pairs if key in ("fill", "stroke") and value in dark]
        night += f".{name}{{{';'.join(changed)}}}" if changed else ""
    return f"{light}@media (prefers-color-scheme: dark){{{night}}}"


def _serialised(root: ET.Element) -> str:
    for element in root.iter():
        if not element.tag.endswith("tspan"):
            element.tail = "\n"
        if len(element) and not (element.text or "").strip():
            element.text = "\n"
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode").replace(" />", "/>")
