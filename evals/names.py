"""One way to say that a name is unknown: what was given, the nearest valid name, and all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(kind: str, given: str, valid: Iterable[str]) -> str:
    """The sentence for an unknown ``given``, with the nearest of the ``valid`` names."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.0)
    nearest = f"; nearest valid name: {near[0]!r}" if near else ""
    return f"unknown {kind} {given!r}{nearest} (valid: {', '.join(names) or 'none'})"
