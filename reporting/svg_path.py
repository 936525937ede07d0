"""Write outlines short: steps from point to point instead of places, and no letter that goes without saying."""

from __future__ import annotations

import math
import re

_TOKEN = re.compile(r"[A-Za-z]|-?\d*\.?\d+")
_ROUND = 0.02
"""Largest distance of a circle's vertices from it, as they are rounded."""
_POINTS = {"M": 1, "L": 1, "Q": 2, "C": 3}

Point = tuple[float, float]


def points(outline: str) -> list[Point]:
    """Return the vertices of a line in absolute places; none where the outline is not one line."""
    numbers = [float(text) for text in re.findall(r"-?\d+\.?\d*", outline)]
    plain = outline.startswith("M") and "M" not in outline[1:] and not re.search(r"[^ML\d. -]", outline)
    return list(zip(numbers[::2], numbers[1::2], strict=True)) if plain else []


def line(places: list[Point]) -> str:
    """Return the outline whose vertices are the places."""
    return "M" + "L".join(f"{x:.10g} {y:.10g}" for x, y in places)


def circle(outline: str) -> str:
    """Return the outline of a circle about the origin, which matplotlib draws as eight curves, as two arcs; else ""."""
    numbers = [float(text) for text in re.findall(r"-?\d+\.?\d*", outline)]
    ends = list(zip(numbers[::2], numbers[1::2], strict=False))[::3]
    radius = abs(numbers[1]) if len(ends) > 1 else 0.0
    curved = re.sub(r"[^A-Za-z]", "", outline).upper() == "M" + 8 * "C" + "Z"
    if not curved or any(abs(math.hypot(x, y) - radius) > _ROUND for x, y in ends):
        return ""
    text = _append("m0", f"{radius:.10g}")
    for across in (-2 * radius, 2 * radius):
        text = _append(_append(text + "a", f"{radius:.10g}"), f"{radius:.10g}") + " 0 1 0 0"
        text = _append(text, f"{across:.10g}")
    return text + "z"


def shorten(outline: str, places: int) -> str:
    """Return an outline of absolute moves, lines and curves in steps, rounded to decimal places.

    Rounding is of the places, not of the steps, so that no error adds up. Other commands leave the outline as it is.
    """
    tokens = _TOKEN.findall(outline)
    text, at, start, last = "", (0, 0), (0, 0), ""
    while tokens:
        command = tokens.pop(0)
        if command in "zZ":
            text, at, last = text + "z", start, "z"
            continue
        if command not in _POINTS:
            return outline
        count = 2 * _POINTS[command]
        scaled = [round(float(number) * 10**places) for number in tokens[:count]]
        del tokens[:count]
        steps = [value - at[k % 2] for k, value in enumerate(scaled)]
        at = (scaled[-2], scaled[-1])
        letter = command.lower()
        if command == "M":
            start = at
        elif command == "L" and not steps[1]:
            letter, steps = "h", steps[:1]
        elif command == "L" and not steps[0]:
            letter, steps = "v", steps[1:]
        if letter != last and not (letter == "l" and last == "m"):
            text += letter
        for step in steps:
            text = _append(text, f"{step / 10**places:.{places}f}")
        last = letter
    return text


def _append(text: str, number: str) -> str:
    """Append a number, with a space only where it would run into the one before."""
    short = re.sub(r"^(-?)0(?=\.)", r"\1", number.rstrip("0").rstrip(".") if "." in number else number) or "0"
    short = "0" if short in ("-", "-0") else short
    before = re.search(r"[\d.]+$", text)
    joined = not before or short[0] == "-" or (short[0] == "." and "." in before[0])
    return text + ("" if joined else " ") + short
