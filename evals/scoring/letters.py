"""Read the letter that an answer to a multiple-choice question names."""

from __future__ import annotations

import re

_SAID = re.compile(r"(?i:answer(?: is|:))\W*([A-D])\b")
_FIRST = re.compile(r"\W*([A-D])\b(?!\s+[a-z])")  # "A table shows" names no choice


def said_letter(text: str) -> str | None:
    """Return the letter after the last "answer is" or "Answer:", or ``None``."""
    said = _SAID.findall(text)
    return said[-1] if said else None


def first_letter(text: str) -> str | None:
    """Return the letter that a text begins with, or ``None``."""
    first = _FIRST.match(text)
    return first[1] if first else None
