"""One look a method, the same in every figure: colour by method, hollow marker for a variant, ink for Full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PAPER = "#ffffff"
INK = "#1b1f24"
MUTED = "#57606a"
GRID = "#dfe3e8"
FAINT = "#b4bac2"
# Chosen by search: at least 3:1 on the page, and apart under normal vision, protanopia, deuteranopia and tritanopia.
HUES = ("#4c9c7c", "#e56a1b", "#094bcd", "#d760bd", "#64542e", "#936ff2", "#1d5c64")
_ORACLE_MARKER = "*"
_LONG_DASHES = (0.0, (7.0, 2.5))
_MARKERS = ("D", "v", "o", "s", "^", "P", "X", "<", ">", "p", "h")

DARK = {
    PAPER: "#14171b",
    INK: "#e6e8eb",
    MUTED: "#a3abb4",
    GRID: "#2c323a",
    FAINT: "#4d5661",
    "#4c9c7c": "#95d4b5",
    "#e56a1b": "#ce5723",
    "#094bcd": "#2e75e4",
    "#d760bd": "#af5d8c",
    "#64542e": "#e7be32",
    "#936ff2": "#956fba",
    "#1d5c64": "#41cae0",
}
"""Each light colour's stand-in where the reader prefers a dark page."""


@dataclass(frozen=True, slots=True)
class Look:
    """Hold the look of one label: a line with markers, or an area where bars are stacked."""

    label: str
    colour: str
    marker: str
    hollow: bool
    is_reference: bool
    is_ceiling: bool = False
    is_area: bool = False
    is_second: bool = False
    """A method before it has this colour too."""

    @property
    def face(self) -> str:
        """Fill of the marker."""
        return PAPER if self.hollow else self.colour

    @property
    def dashes(self) -> str | tuple[float, tuple[float, ...]]:
        """Line style: dashed for Full, dash-dotted for a ceiling, dotted for a variant, long dashes for a second."""
        if self.is_reference or self.is_ceiling or self.hollow:
            return "--" if self.is_reference else "-." if self.is_ceiling else ":"
        return _LONG_DASHES if self.is_second else "-"


def looks(
    labels: Sequence[str], kinds: Sequence[str], reference: str, ceiling: str = "", oracle: str = ""
) -> dict[str, Look]:
    """Return a look for each label.

    Colours go to methods in the order given; a further label of a method keeps its colour and gets a hollow marker.
    Colour and marker change at different paces, so that past seven methods no pair repeats; lines of the later ones
    have long dashes.

    Args:
        labels: in table order.
        kinds: the registered method behind each label.
        reference: the method drawn as the reference.
        ceiling: the method drawn as the limit of what any other can reach, where there is one.
        oracle: the method drawn as the limit of choosing, grey with a marker, where there is one.
    """
    methods = list(dict.fromkeys(kind for kind in kinds if kind not in (reference, ceiling, oracle)))
    found: dict[str, Look] = {}
    for label, kind in zip(labels, kinds, strict=True):
        if kind == reference:
            found[label] = Look(label, INK, "", False, True)
            continue
        if kind == ceiling:
            found[label] = Look(label, MUTED, "", False, False, is_ceiling=True)
            continue
        hollow = any(kind == other for other in kinds[: list(labels).index(label)])
        if kind == oracle:
            found[label] = Look(label, MUTED, _ORACLE_MARKER, hollow, False, is_ceiling=True)
            continue
        place = methods.index(kind)
        colour, marker = HUES[place % len(HUES)], _MARKERS[place % len(_MARKERS)]
        found[label] = Look(label, colour, marker, hollow, False, is_second=place >= len(HUES))
    return found
