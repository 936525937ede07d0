"""The answer a piece of mathematical writing ends in: the last box, and the integer in it where there is one."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?=\{)")
_STYLE = re.compile(r"\\(?:textbf|mathbf|boldsymbol|bf|text|textrm|mathrm|bm)\s*\{([^{}]*)\}")
_INTEGER = re.compile(r"[+-]?\d+")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+")


def final_answer(text: str) -> str | None:
    """Return the content of a text's last box, boxes within it included; ``None`` where no box is closed.

    A generation that was cut off within its last box is read by the box before.
    """
    found: str | None = None
    end = 0
    for box in _BOX.finditer(text):
        if box.start() < end:
            continue  # within the box before
        closing = _closing_brace(text, box.end())
        if closing is not None:
            found, end = text[box.end() + 1 : closing].strip(), closing
    return found


def integer_answer(answer: str) -> int | None:
    """The integer that an answer is, dressed as contest answers are (``$073$``, ``\\textbf{(073)}``, ``1{,}000``).

    ``None`` for anything that would have to be computed.
    """
    plain = _STYLE.sub(r"\1", answer).replace("$", "").replace("{,}", "").replace("\\,", "").replace("\\!", "")
    plain = plain.strip().rstrip(".").strip()
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1].strip()
    if _THOUSANDS.fullmatch(plain):  # "2,4" is two answers
        plain = plain.replace(",", "")
    return int(plain) if len(plain) <= 32 and _INTEGER.fullmatch(plain) else None


def _closing_brace(text: str, opening: int) -> int | None:
    """Return where the brace opened at ``opening`` is closed; escaped braces do not count."""
    depth = 0
    at = opening
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
        at += 1
    return None
