"""Keep pages with many methods readable: families from the cards, and the featured methods of overviews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from longdecode.evals.tasks.registry import describe, suite_names
from longdecode.methods.registry import load_card, method_names

MOST_DRAWN = 9
"""Lines that a panel shows at most; with more methods, overviews draw the featured ones."""


@cache
def settings() -> Mapping[str, Any]:
    """Return ``families.yaml``."""
    found: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return found


def suite_families() -> dict[str, str]:
    """Return the family of each suite that has one: its description's, or else the one in ``families.yaml``."""
    described = {name: words["family"] for name in suite_names() if "family" in (words := describe(name))}
    return {**settings()["suite_families"], **described}


def featured(labels: Sequence[str], kinds: Mapping[str, str], wanted: Sequence[str]) -> frozenset[str]:
    """Return the labels that overview figures and lists show: all where few ran, else the named methods' own labels."""
    if len(labels) <= MOST_DRAWN:
        return frozenset(labels)
    return frozenset(label for label in labels if label == kinds[label] and label in wanted)


def by_family(
    labels: Sequence[str], kinds: Mapping[str, str], titles: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """Return the labels by the family that their method's card names, families in the order of ``titles``."""
    found: dict[str, list[str]] = {name: [] for name in titles}
    for label in labels:
        family = getattr(load_card(kinds[label]), "family", None) if kinds[label] in method_names() else None
        found.setdefault(family or "", []).append(label)
    return [
        (titles.get(name, name.replace("_", " ").capitalize() or "Other"), mine) for name, mine in found.items() if mine
    ]
