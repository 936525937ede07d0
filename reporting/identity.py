"""One look a method, the same in every figure: colour by method, hollow marker for a variant, ink for Full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PAPER = "#ffffff"
INK = "#1b1f24"
MUTED = "#57606a"
GRID = "#dfe3e8"
FAINT = "#b4bac2"
# Chosen by search: at least 3:1 on the page, and apart under normal vision, protanopia, deuteranopia and tritanopia.
HUES = ("#4c9c7c", "#e56a1b", "#094bcd", "#d760bd", "#64542e", "#936ff2", "#1d5c64")
_ORACLE_MARKER = "*"
_DASHES = ("-", (0.0, (7.0, 2.5)), (0.0, (7.0, 1.5, 1.0, 1.5, 1.0, 1.5)))
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
    turn: int = 0
    """Count of methods before it that have this colour too."""

    @property
    def face(self) -> str:
        """Fill of the marker."""
        return PAPER if self.hollow else self.colour

    @property
    def dashes(self) -> str | tuple[float, tuple[float, ...]]:
        """Line style: dashed for Full, dash-dotted for a ceiling, dotted for a variant; else by turn."""
        if self.is_reference or self.is_ceiling or self.hollow:
            return "--" if self.is_reference else "-." if self.is_ceiling else ":"
        return _DASHES[min(self.turn, len(_DASHES) - 1)]


def _rarest(fixed: Mapping[str, int], kinds: Sequence[str]) -> int:
    """Return the colour that the fewest methods of a report have, of equals the first."""
    used = [hue for kind, hue in fixed.items() if kind in kinds]
    return min(range(len(HUES)), key=used.count)


def looks(
    labels: Sequence[str],
    kinds: Sequence[str],
    reference: str,
    ceiling: str = "",
    oracle: str = "",
    hues: Mapping[str, int] | None = None,
) -> dict[str, Look]:
    """Return a look for each label.

    A method that ``hues`` names has its colour and marker from there, so that they are the same in every report; other
    methods take the colour that the fewest methods here have. A further label of a method keeps its colour and gets a
    hollow marker of another form. Where methods of one report share a colour, their lines differ.

    Args:
        labels: in table order.
        kinds: the registered method behind each label.
        reference: the method drawn as the reference.
        ceiling: the method drawn as the limit of what any other can reach, where there is one.
        oracle: the method drawn as the limit of choosing, grey with a marker, where there is one.
        hues: method to place among the colours.
    """
    fixed = dict(hues or {})
    for kind in kinds:
        if kind not in (reference, ceiling, oracle):
            fixed.setdefault(kind, _rarest(fixed, kinds))
    present = [kind for kind in fixed if kind in kinds]
    found: dict[str, Look] = {}
    before: list[str] = []
    for label, kind in zip(labels, kinds, strict=True):
        variant = before.count(kind)
        before.append(kind)
        if kind == reference:
            found[label] = Look(label, INK, "", False, True)
        elif kind == ceiling:
            found[label] = Look(label, MUTED, "", False, False, is_ceiling=True)
        elif kind == oracle:
            found[label] = Look(label, MUTED, _ORACLE_MARKER, variant > 0, False, is_ceiling=True)
        else:
            earlier = present[: present.index(kind)]
            marker = _MARKERS[(list(fixed).index(kind) + variant) % len(_MARKERS)]
            turn = sum(fixed[other] == fixed[kind] for other in earlier)
            found[label] = Look(label, HUES[fixed[kind]], marker, variant > 0, False, turn=turn)
    return found
