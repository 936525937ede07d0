"""Cut texts to what matters, mark the answers in them, and show letters that print nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

_AROUND = 60
_HEAD, _TAIL = 240, 160
_LEAST_SPAN = 5
_LEAST_CUT = 40
_MOST_PLACES = 3
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of letters that print nothing, or change how others print."""

Piece = tuple[str, Literal["", "gold", "cut"]]
"""A stretch of text as it stands, of the answer, or a note of what was left out there."""


def shown(text: str) -> str:
    """Return a text with letters that print nothing made visible; markup is the template's to escape."""
    return "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter in "\n\t" or unicodedata.category(letter) not in _UNSEEN:
        return letter
    return chr(0x2400 + ord(letter)) if letter < " " else "\u2421" if letter == "\x7f" else "\ufffd"


def spans(prompt: str, item: str) -> list[tuple[int, int]]:
    """Return where an expected item stands in a prompt: whole, or its longest beginning and end that do."""
    if whole := places(prompt, item):
        return [(at, at + len(item)) for at in whole]
    parts = (
        _longest(lambda size: item[:size], prompt, len(item)),
        _longest(lambda size: item[-size:], prompt, len(item)),
    )
    return [(at, at + len(part)) for part in dict.fromkeys(parts) if part for at in places(prompt, part)[:1]]


def places(text: str, item: str) -> list[int]:
    """Return where an item begins, the first few times."""
    found: list[int] = []
    while item and len(found) < _MOST_PLACES and (at := text.find(item, found[-1] + len(item) if found else 0)) >= 0:
        found.append(at)
    return found


def _longest(cut: Callable[[int], str], prompt: str, most: int) -> str:
    found = (cut(size).strip() for size in range(most - 1, _LEAST_SPAN - 1, -1))
    return next((part for part in found if len(part) >= _LEAST_SPAN and part in prompt), "")


def pieces(prompt: str, items: Sequence[str]) -> list[Piece]:
    """Cut a prompt to its beginning, its end and what surrounds the gold spans."""
    return cut(prompt, [span for item in items for span in spans(prompt, item)], _HEAD, _TAIL)


def cut(text: str, spots: Iterable[tuple[int, int]], head: int, tail: int) -> list[Piece]:
    """Cut a text to its beginning, its end and what surrounds some places, which are gold."""
    marked = _joined(spots, 0)
    kept = [(0, head), (len(text) - tail, len(text)), *((low - _AROUND, high + _AROUND) for low, high in marked)]
    found: list[Piece] = []
    end = 0
    for low, high in _joined(((max(0, low), min(len(text), high)) for low, high in kept), _LEAST_CUT):
        found += [(f"[{low - end:,} characters left out]", "cut")] if low > end else []
        found += _marked(text, low, high, marked)
        end = high
    return [(words if kind == "cut" else shown(words), kind) for words, kind in found]


def _joined(spots: Iterable[tuple[int, int]], apart: int) -> list[tuple[int, int]]:
    """Return places in order, those that touch or lie less than some letters apart as one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(spots):
        if found and low <= found[-1][1] + apart:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _marked(text: str, low: int, high: int, marked: Sequence[tuple[int, int]]) -> list[Piece]:
    found: list[Piece] = []
    for start, end in marked:
        if low <= start < high:
            found += [(text[low:start], ""), (text[start:end], "gold")]
            low = end
    return [(words, kind) for words, kind in [*found, (text[low:high], "")] if words]
