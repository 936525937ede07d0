"""One table of colours for charts, style sheet and marks: a family of methods looks the same in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping

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
FAMILIES: Mapping[str, tuple[str, str]] = {
    "heads": ("#1a5fc8", "#79aefc"),
    "selection": ("#0a7a52", "#48cf9b"),
    "eviction": ("#b4460c", "#ff9d61"),
    "offload": ("#8338a8", "#cc98fb"),
    "speculation": ("#6f6300", "#d9c440"),
    "quantised": ("#a01a58", "#f58fbd"),
    "reference": ("#5a6371", "#a3adba"),
}
"""By family: its colour on a light and on a dark ground, each with a contrast of at least 4.5."""
FAMILY_TITLES: Mapping[str, str] = {
    "heads": "Learned heads",
    "selection": "Selection",
    "eviction": "Eviction",
    "offload": "Offload",
    "speculation": "Speculation",
    "quantised": "Quantised",
    "reference": "Reference",
}
SHAPES: Mapping[str, str] = {
    "heads": "circle",
    "selection": "square",
    "eviction": "triangle-up",
    "offload": "diamond",
    "speculation": "triangle-down",
    "quantised": "triangle-right",
    "reference": "cross",
}
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
