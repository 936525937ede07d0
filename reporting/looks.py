"""Colours of figures, one table for light and dark, and names placed to cover no mark, line or other name."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

INK: Mapping[str, tuple[str, str]] = {
    "ink": ("#1b1f24", "#e8eaed"),
    "muted": ("#57606a", "#a4adb8"),
    "line": ("#d0d7de", "#3a414b"),
    "grid": ("#eceff2", "#262b32"),
    "ground": ("#ffffff", "#14171b"),
    "panel": ("#f6f8fa", "#1c2026"),
    "band": ("#e6f2ea", "#1b3226"),
    "print": ("#67707b", "#98a1ad"),
}
_FAMILY_LOOKS: Mapping[str, tuple[str, str, str, str]] = {
    "heads": ("#1a5fc8", "#79aefc", "Learned heads", "circle"),
    "selection": ("#0a7a52", "#48cf9b", "Selection", "square"),
    "eviction": ("#b4460c", "#ff9d61", "Eviction", "triangle-up"),
    "offload": ("#8338a8", "#cc98fb", "Offload", "diamond"),
    "speculation": ("#6f6300", "#d9c440", "Speculation", "triangle-down"),
    "quantised": ("#a01a58", "#f58fbd", "Quantised", "triangle-right"),
    "reference": ("#5a6371", "#a3adba", "Reference", "cross"),
}
"""By family: its colour on a light and on a dark ground, each with a contrast of at least 4.5; its title and mark."""
FAMILIES: Mapping[str, tuple[str, str]] = {name: look[:2] for name, look in _FAMILY_LOOKS.items()}
FAMILY_TITLES: Mapping[str, str] = {name: look[2] for name, look in _FAMILY_LOOKS.items()}
SHAPES: Mapping[str, str] = {name: look[3] for name, look in _FAMILY_LOOKS.items()}
HEAT: Mapping[str, tuple[str, str]] = {
    "heat0": ("#0d6b4f", "#8fe3bd"),
    "heat1": ("#3f9a78", "#4fb78f"),
    "heat2": ("#93c9b2", "#2b7a5d"),
    "heat3": ("#d6ebe1", "#1f4637"),
}
"""Steps of the heat map, the smallest budget first; text on the first two has the ground's colour."""
LIGHT: Mapping[str, str] = {name: pair[0] for name, pair in {**INK, **FAMILIES, **HEAT}.items()}
_OF_CARD = {
    "dense": "reference",
    "sinks+window": "eviction",
    "evicting": "eviction",
    "heads": "heads",
    "pages": "selection",
    "tokens": "selection",
    "speculative": "speculation",
}
_OF_METHOD = {
    "oracle_topk": "reference", "shadowkv": "offload", "full_fp8": "quantised", "full_int4": "quantised"
}  # fmt: skip


def family(method: str, card_family: str | None) -> str:
    """Return the colour family of a method; one without a card is a reference."""
    return _OF_METHOD.get(method) or _OF_CARD.get(card_family or "dense", "reference")


def css_variables(side: int) -> str:
    """Return the colours as CSS variables: side 0 is light, 1 is dark."""
    return "".join(f"--{name}:{pair[side]};" for name, pair in {**INK, **FAMILIES}.items())


def dark_svg_rules(scope: str) -> str:
    """Return CSS that recolours a chart in dark mode: rules win over the attributes that Vega writes."""
    return "".join(
        f'{scope} [fill="{light}"]{{fill:{dark}}}{scope} [stroke="{light}"]{{stroke:{dark}}}'
        for light, dark in {**INK, **FAMILIES, **HEAT}.values()
    )


Point = tuple[float, float]
Box = tuple[float, float, float, float]
SIZES = {"wide": (800, 430), "middle": (490, 430), "narrow": (260, 430)}
"""Plot areas in px that names are placed for: a desk, a tablet and a phone; the smallest of those drawn."""
_BESIDE = [
    (dx * r, dy * r, align)
    for r in (1.0, 1.7, 2.6)
    for dx, dy, align in (
        (12, 0, "left"),
        (-12, 0, "right"),
        (0, -16, "center"),
        (0, 17, "center"),
        (11, -12, "left"),
        (11, 13, "left"),
        (-11, -12, "right"),
        (-11, 13, "right"),
    )
]
_HEIGHT, _TOO_MUCH = 8, 60
TALL, LINE = 320, 16
"""Height in px of a plot of lines, and of a line of its text."""
BARE: Mapping[str, Any] = {"grid": False, "labelOverlap": "greedy", "labelSeparation": 10}
"""An axis without a grid, whose labels leave room for each other."""
PHONE = "width < 420"
"""Vega expression: the plot stands on a phone."""


def root(value: float) -> float:
    """Return the signed square root, the scale of losses."""
    return math.copysign(math.sqrt(abs(value)), value)


def text_width(text: str) -> float:
    """Return the width in px of bold 13 px Arial, to a few per cent."""
    return sum(11.6 if c in "mwMW" else 4.4 if c in "iljtfr-., " else 9.4 if c.isupper() else 7.5 for c in text)


class Canvas:
    """The plot area with what is on it already.

    Args:
        size: a key of ``SIZES``.
        x: domain of the speeds, linear.
        y: domain of the losses, by square root, the smallest at the top.
        paths: lines on the chart as points (speed, loss); their ends and corners are marks.
    """

    def __init__(self, size: str, x: Point, y: Point, paths: Iterable[Sequence[Point]]) -> None:
        (self.width, self.height), self.x, self.y = SIZES[size], x, y
        drawn = [[self.at(point) for point in path] for path in paths]
        self.marks = np.array([point for path in drawn for point in path])
        steps = np.linspace(0, 1, 25)[:, None]
        parts = [np.array(a) + (np.array(b) - np.array(a)) * steps for path in drawn for a, b in pairwise(path)]
        self.lines = np.concatenate([self.marks, *parts])
        self.boxes: list[Box] = [(self.width - 160, 0, self.width, 26)]  # the words of the band

    def at(self, point: Point) -> Point:
        """Return where a speed and a loss stand, in px."""
        (x0, x1), (y0, y1) = self.x, (root(self.y[0]), root(self.y[1]))
        return (point[0] - x0) / (x1 - x0) * self.width, (root(point[1]) - y0) / (y1 - y0) * self.height

    def place(self, text: str, anchors: Sequence[Point]) -> dict[str, float | str] | None:
        """Return the best place beside any anchor, the first ones preferred; none where all would cover something."""
        wide = text_width(text) + 3
        own = np.array([self.at(anchor) for anchor in anchors])
        others = self.marks[(self.marks[:, None] != own).any(axis=2).all(axis=1)]
        best: tuple[float, Box, dict[str, float | str]] | None = None
        for order, anchor in enumerate(anchors):
            x, y = self.at(anchor)
            for rank, (dx, dy, align) in enumerate(_BESIDE):
                left = x + dx - {"left": 0.0, "right": wide, "center": wide / 2}[align]
                box = (left, y + dy - _HEIGHT, left + wide, y + dy + _HEIGHT)
                astray = _gap(others, box) + 2 < _gap(own, box)
                cost = self._cost(box) + _TOO_MUCH * astray + 0.5 * rank + 3 * order
                if best is None or cost < best[0]:
                    best = (cost, box, {"x": anchor[0], "y": anchor[1], "dx": dx, "dy": dy, "align": align})
        if best is None or best[0] >= _TOO_MUCH:
            return None
        self.boxes.append(best[1])
        return {"text": text, **best[2]}

    def _cost(self, box: Box) -> float:
        left, top, right, bottom = box
        outside = left < 0 or right > self.width or top < 0 or bottom > self.height
        on_text = sum(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in self.boxes)
        on_marks = _inside(self.marks, (left - 9, top - 4, right + 9, bottom + 4))
        on_lines = _inside(self.lines, box)
        return 1000 * outside + 300 * on_text + 60 * on_marks + 6 * on_lines


def _gap(points: npt.NDArray[np.float64], box: Box) -> float:
    """Return the distance in px from a box to the nearest point."""
    corners = np.array(box).reshape(2, 2)
    away = np.maximum(0, np.maximum(corners[0] - points, points - corners[1]))
    return float(np.hypot(*away.T).min(initial=math.inf))


def _inside(points: npt.NDArray[np.float64], box: Box) -> int:
    x, y = points[:, 0], points[:, 1]
    return int(((x > box[0]) & (x < box[2]) & (y > box[1]) & (y < box[3])).sum())


def named_ends(rows: pd.DataFrame, y: Sequence[float]) -> tuple[pd.DataFrame, float, float]:
    """Return the last point of each line, with its name in one line and wrapped, moved apart inside the plot.

    The two numbers are the px that names take beside the plot, in one line and wrapped.
    """
    ends = rows.sort_values("x").groupby("name", sort=False).tail(1).sort_values("y", ascending=False)
    ends["wrapped"] = [textwrap.wrap(name, 16) for name in ends.name]
    at = [(y[1] - value) / (y[1] - y[0]) * TALL for value in ends.y]
    ends = ends.assign(dy=_apart(at, [1] * len(at)), dy_wrapped=_apart(at, [len(name) for name in ends.wrapped]))
    room, wrapped = (max(map(text_width, names)) + 12 for names in (ends.name, chain(*ends.wrapped)))
    return ends, room, wrapped


def _apart(at: Sequence[float], lines: Sequence[int]) -> list[float]:
    """Return how far down to move the first line of each name, from the top, so that none covers another."""
    tops, taken = [], -LINE / 2
    for place, count in zip(at, lines, strict=True):
        tops.append(max(taken, place - count * LINE / 2))
        taken = tops[-1] + count * LINE
    bottom = TALL + LINE / 2
    for i in reversed(range(len(tops))):
        tops[i] = bottom = min(tops[i], bottom - lines[i] * LINE)
    return [top + LINE / 2 - place for top, place in zip(tops, at, strict=True)]
