"""The answer a piece of mathematical writing ends in: the last box, and the integer in it where there is one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from longdecode.evals.scoring.plain_text import plain

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])(?:\[[^\[\]]*\])*")
_BRACE = re.compile(r"\s*\{")
_UNESCAPED = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace, or a character behind a backslash that is passed over."""
_BARE = re.compile(r"[ \t]*(?=\(?[-+\u2212]?(?:\d|\.\d|\\(?!boxed|fbox|framebox)[A-Za-z])|[A-Za-z](?![A-Za-z]))")
"""The beginning of an answer that stands behind a box's command without braces; a word is none."""
_INTEGER = re.compile(r"[+-]?\d+")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)")


def final_answer(text: str) -> str | None:
    """Return the content of a text's last box, boxes within it included; ``None`` where no box is closed.

    Without braces (``\\boxed 73``) the answer ends at white space, a dollar or the end of the formula. A generation
    that was cut off within its last box is read by the box before, and an empty box is a mention of one.
    """
    boxes = box_contents(text)
    return boxes[-1][0] if boxes else None


def box_contents(text: str) -> list[tuple[str, int]]:
    """Return the content of each closed box that holds something, with the place where the box ends."""
    found: list[tuple[str, int]] = []
    end = 0
    closings = _closing_braces(text)
    for box in _BOX.finditer(text):
        if box.start() < end:
            continue  # within the box before
        content: str | None = None
        if opening := _BRACE.match(text, box.end()):
            closing = closings.get(opening.end() - 1)
            if closing is not None:
                content, end = text[opening.end() : closing], closing + 1
        elif bare := _BARE.match(text, box.end()):
            end = _bare_end(text, bare.end(), closings)
            content = text[bare.end() : end].rstrip(".,;:!?*")
        if content is not None and content.strip():
            found.append((content.strip(), end))
    return found


def integer_answer(answer: str) -> int | None:
    """The integer that an answer is, dressed as contest answers are (``$073$``, ``\\textbf{(073)}``, ``1{,}000``).

    ``None`` for anything that would have to be computed.
    """
    undressed = plain(answer).strip().rstrip(".").strip()
    while undressed[:1] + undressed[-1:] in ("()", "{}"):
        undressed = undressed[1:-1].strip()
    if _THOUSANDS.fullmatch(undressed):  # "2,4" is two answers
        undressed = re.sub("[, ]", "", undressed)
    return int(undressed) if len(undressed) <= 32 and _INTEGER.fullmatch(undressed) else None


def _closing_braces(text: str) -> dict[int, int]:
    """Return where each brace is closed, by where it is opened; escaped braces do not count."""
    closings: dict[int, int] = {}
    open_at: list[int] = []
    for brace in _UNESCAPED.finditer(text):
        if brace[0] == "{":
            open_at.append(brace.start())
        elif brace[0] == "}" and open_at:
            closings[open_at.pop()] = brace.start()
    return closings


def _bare_end(text: str, start: int, closings: Mapping[int, int]) -> int:
    """Return where an answer without braces of its own ends."""
    at = start
    while (
        at < len(text) and not text[at].isspace() and text[at] not in "$}" and text[at : at + 2] not in ("\\)", "\\]")
    ):
        closing = closings.get(at) if text[at] == "{" else at
        if closing is None:
            break
        at = closing + 1
    return at
