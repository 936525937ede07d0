"""Sinks and recent tokens that a list always holds, inside its budget."""

from __future__ import annotations

import math


def kept_always(width: int, first: int, last: int, at_least: int) -> tuple[int, int]:
    """Return how many leading and trailing entries of a list of ``width`` are taken whatever their scores.

    Sink and recent entries as asked for where they fill no more than half of the list; otherwise both shrink in
    proportion to that half, so that the other half is chosen by score.

    Args:
        width: entries of the list, 1 or more.
        first: leading entries wanted.
        last: trailing entries wanted, ``at_least`` or more.
        at_least: trailing entries kept even in a list with no room for more (0 or 1).
    """
    room = max(width // 2, at_least)
    if first + last <= room:
        return first, last
    first = min(math.floor(room * first / (first + last) + 0.5), room - at_least)
    return first, room - first


def window(width: int, sink_tokens: int, recent_tokens: int, current: bool, entry_tokens: int = 1) -> tuple[int, int]:
    """Return the leading and trailing entries that a list keeps for its sinks and recent tokens.

    Args:
        width: entries of the list, 1 or more.
        sink_tokens: first tokens wanted, in whole entries.
        recent_tokens: latest tokens wanted besides the current entry, in whole entries.
        current: the current entry is always kept, too.
        entry_tokens: tokens of an entry.
    """
    first, last = -(-sink_tokens // entry_tokens), -(-recent_tokens // entry_tokens)
    return kept_always(width, first, last + int(current), int(current))
