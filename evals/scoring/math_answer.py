"""The answer a piece of mathematical writing ends in: the last box, and the integer in it where there is one."""

from __future__ import annotations

import re

from longdecode.evals.scoring.plain_text import plain

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])(?:\[[^\]]*\])*")
_BRACE = re.compile(r"\s*\{")
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
    for box in _BOX.finditer(text):
        if box.start() < end:
            continue  # within the box before
        content: str | None = None
        if opening := _BRACE.match(text, box.end()):
            closing = _closing_brace(text, opening.end() - 1)
            if closing is not None:
                content, end = text[opening.end() : closing], closing + 1
        elif bare := _BARE.match(text, box.end()):
            end = _bare_end(text, bare.end())
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


def _bare_end(text: str, start: int) -> int:
    """Return where an answer without braces of its own ends."""
    at = start
    while (
        at < len(text) and not text[at].isspace() and text[at] not in "$}" and text[at : at + 2] not in ("\\)", "\\]")
    ):
        closing = _closing_brace(text, at) if text[at] == "{" else at
        if closing is None:
            break
        at = closing + 1
    return at
