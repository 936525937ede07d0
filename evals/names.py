"""One way to say that a name is unknown: what was given, the nearest valid name, and all of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from longdecode.engine.errors import ConfigError


def unknown_name(kind: str, given: str, valid: Iterable[str]) -> str:
    """The sentence for an unknown ``given``, with the nearest of the ``valid`` names."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.0)
    nearest = f"; nearest valid name: {near[0]!r}" if near else ""
    return f"unknown {kind} {given!r}{nearest} (valid: {', '.join(names) or 'none'})"


def require_known(source: str, kind: str, given: Iterable[str], valid: Collection[str]) -> None:
    """Refuse names that are not among the valid ones.

    Raises:
        ConfigError: the message begins with ``source`` and gives the nearest valid name.
    """
    for name in given:
        if name not in valid:
            raise ConfigError(f"{source}: {unknown_name(kind, name, valid)}")


def slug(text: str) -> str:
    """Return a name that is safe as file name and anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def colliding(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that would have one page, or ``None``."""
    seen: dict[str, str] = {}
    for name in names:
        if (first := seen.setdefault(slug(name), name)) != name:
            return first, name
    return None
