"""Read numbered answers out of one generation: which text belongs to which question, and the number or letter it gives.

Accepted headers: ``Answer_6:`` and its kin (``Answer 6``, ``Answer6:``, ``Answer\\_6:``, ``Answer #6.``, ``Answer to
Question 6:``), bold, as a heading or in a list. A header stands at the beginning of a line, or behind a sentence with a
colon of its own; "as in Question_6 we halve" is a mention and cuts nothing. A question's options written out again
are no choice, and "A" before a word is an article.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction

from longdecode.evals.scoring.plain_text import plain

_LABEL = re.compile(
    r"(?<!\w)(?P<kind>(?i:answer|question))(?:[ \t]+(?:to|for)[ \t]+(?i:question))?"
    r"(?:[_ \t]{0,3}|-)(?:#|[Nn]o\.? ?|[({\[])?(?P<number>\d{1,9})(?![.,]?\d|\w)[)}\]]?(?P<colon>[ \t]*:)?"
)
_LINE_START = re.compile(r"[ \t#>|+•-]*(?:\d{1,3}[.)][ \t]*)?")
_REST_OF_LINE = re.compile(r"[ \t]*(?:\n|\Z)")
_SENTENCE_END = re.compile(r"[.!?:;)\]}|\"'\u2019\u201d][ \t]*$")
_REFERRING = re.compile(
    r"(?:\(|\b(?:in|from|of|to|see|as|by|with|per|like|than|using|use|for|recall|and|or|the|on|at|since|via|unlike|under|after"
    r"|before|both|our|my|this))[ \t(]*$",
    re.IGNORECASE,
)
_SAID = re.compile(r"answer is:?(.*)", re.IGNORECASE)
_VERB = r"(?:is|was|are|were|has|does|would|could|can|cannot|may|must|should|says?|because|since|as|and|or)\b"
_OPTION = re.compile(rf"(?<![\w(])\(?([A-E])[).:](?=\s+(?!{_VERB})\S)")
"""An option as a question lists it, its letter and its text; "(A) is too small" is a reason."""
_LEAST_LISTED = 3
_OPTIONS_END = re.compile(r"\n|\([A-E]\)|\Z")
_LETTER = rf"(?<!\w\.)(?<![°\w–-])(?:[B-E]|A(?![ \t]+(?!{_VERB})[A-Za-z]))(?![\w=–-]|\.\w)"
_NUMBER = re.compile(r"-?\d[\d,]{0,99}(?:\.\d{1,99})?(?:/\d{1,99})?|-?\.\d{1,99}")


def numbered_answers(completion: str) -> dict[int, list[str]]:
    """Return the answers given under each number, in order and in plain text, each from its header to the next."""
    text = plain(completion)
    headers: list[re.Match[str]] = []
    answered: dict[int, list[str]] = {}
    for label in _LABEL.finditer(text):
        if _is_header(label, text, headers[-1].end() if headers else 0, answered):
            headers.append(label)
            if _is_answer(label):
                answered.setdefault(int(label["number"]), [])
    ends = [*(header.start() for header in headers[1:]), len(text)]
    for header, end in zip(headers, ends, strict=False):
        if _is_answer(header):
            answered[int(header["number"])].append(text[header.end() : end])
    return answered


def read_number(text: str) -> Fraction | None:
    """Return the number of a plain text that follows its last "answer is" and an equals sign there, else the last."""
    said = _SAID.findall(text)
    first = _NUMBER.findall(said[-1].rpartition("=")[2]) if said else []
    found = first[:1] or _NUMBER.findall(text)[-1:]
    if not found:
        return None
    top, _, bottom = found[0].replace(",", "").partition("/")
    return Fraction(Decimal(top)) / (int(bottom or 1) or 1)


def read_letter(text: str) -> str | None:
    """Return the letter that follows the last "answer is", else the last in parentheses, else the last by itself.

    The options of a question are passed over where they are written out again.
    """
    said = _SAID.findall(text)
    if found := re.findall(r"\(?\b([A-E])\b\)?", said[-1] if said else ""):
        return found[0]
    rest = _without_options(text)
    found = re.findall(r"\(([A-E])\)", rest) or re.findall(_LETTER, rest)
    return found[-1] if found else None


def _without_options(text: str) -> str:
    """Cut runs of three options and more (``(A) ... (B) ... (C) ...``), with the text of the last to its line's end."""
    kept, end = [], 0
    run: list[re.Match[str]] = []
    for option in [*_OPTION.finditer(text), None]:
        if option is not None and option[1] == "ABCDE"[len(run) : len(run) + 1]:
            run.append(option)
            continue
        if len(run) >= _LEAST_LISTED:
            kept.append(text[end : run[0].start()])
            end = _OPTIONS_END.search(text, run[-1].end()).start()  # type: ignore[union-attr]
        run = [option] if option is not None and option[1] == "A" else []
    return "".join([*kept, text[end:]])


def _is_answer(label: re.Match[str]) -> bool:
    return label["kind"].lower() == "answer"


def _is_header(label: re.Match[str], text: str, start: int, answered: Collection[int]) -> bool:
    """Tell a header from a mention; ``start`` is where the text of the answer before begins.

    A question up to the last answer is most likely a mention, and so is a number that was answered already.
    """
    number, colon = int(label["number"]), label["colon"] is not None
    new = number not in answered if _is_answer(label) else number > max(answered, default=0)
    before = text[text.rfind("\n", 0, label.start()) + 1 : label.start()]
    at_line_start = _LINE_START.fullmatch(before) is not None
    if label["kind"][0].islower():
        return colon and at_line_start
    if at_line_start:
        return colon or new or _REST_OF_LINE.match(text, label.end()) is not None
    behind_sentence = _SENTENCE_END.search(before[-20:]) is not None
    if colon:
        return behind_sentence or ((new or _is_answer(label)) and _REFERRING.search(before[-20:]) is None)
    return new and behind_sentence and _SAID.search(text, start, label.start()) is not None
