"""Marks for many answers in one generation: by the number each answer carries, and as two released scorers give them.

``marks_by_number`` is this project's: an answer counts for the question whose number it carries, wherever it stands and
however it is dressed. A question without an answer is wrong.
``original_marks`` and ``scope_marks`` mirror released scorers to the letter, what they cannot read included: they match
answers to questions by order, so that one answer they cannot read shifts the rest.

Accepted headers: ``Answer_6:`` and its kin (``Answer 6``, ``Answer6:``, ``Answer\\_6:``, ``Answer #6.``, ``Answer to
Question 6:``), bold, as a heading or in a list. A header stands at the beginning of a line, or behind a sentence with a
colon of its own; "as in Question_6 we halve" is a mention and cuts nothing. A question's options written out again
are no choice, and "A" before a word is an article.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from decimal import Decimal
from fractions import Fraction

from longdecode.evals.scoring.answer_text import plain

_ORIGINAL_NUMBER = re.compile(r"\d*\.?\d+")
_ORIGINAL_SPAN = re.compile(r"(?<=:\n)(.*?)(?=\n\n|$)", re.DOTALL)
_SCOPE_NUMBER = re.compile(r"Answer_\d+:\s*.*?answer is (\d+)", re.DOTALL)
_SCOPE_LETTER = re.compile(r"Answer_\d+:\s*.*?answer is \((.*?)\)")
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


def marks_by_number(completion: str, golds: Sequence[str], first: int) -> list[bool | None]:
    """Mark the answer to each question: right, wrong, or ``None`` where there is none that can be read.

    Of several answers with one number the first that can be read counts. Numbers are compared as numbers.

    Args:
        completion: the generation.
        golds: gold answers: digits, or one capital letter.
        first: number of the first question.
    """
    given = numbered_answers(completion)
    read = [read_letter if gold.isalpha() else read_number for gold in golds]
    read_each = ([how(text) for text in given.get(first + index, ())] for index, how in enumerate(read))
    found = [next((answer for answer in answers if answer is not None), None) for answers in read_each]
    wanted = [how(gold) for how, gold in zip(read, golds, strict=True)]
    return [None if answer is None else answer == gold for answer, gold in zip(found, wanted, strict=True)]


def original_marks(completion: str, golds: Sequence[str]) -> list[bool]:
    """Mark as LongGenBench's scripts do: by order; the list is as long as the answers found, at most all.

    Read is the last number (digits with a point or none, commas dropped, no sign) or the last capital letter of what
    follows a colon at a line's end, up to a blank line. ``Answer_9: text`` on one line is not read.

    Source: github Dominic789654/LongGenBench, longgenbench_GSM8K_openai.py and longgenbench_MMLU_openai.py. Not done:
    MMLU's script asks the model again for answers that are missing.
    """
    spans = _ORIGINAL_SPAN.findall("\n".join(completion.split("Answer_")))
    return [_original(span.strip(), gold) for span, gold in zip(spans, golds, strict=False)]


def scope_marks(completion: str, golds: Sequence[str]) -> list[bool]:
    """Mark as SCOPE does: by order, every "answer is" that its pattern reads; a mark for each question.

    Read are bare digits or a letter in parentheses, after a header ``Answer_9:``. Not ``$18``, ``-3``, ``B`` or markup.

    Source: github Linking-ai/SCOPE, eval_longgenbench.py.
    """
    letters = bool(golds) and golds[0].isalpha()
    found = (_SCOPE_LETTER if letters else _SCOPE_NUMBER).findall(completion)
    # Its gold number is the digits before a separator.
    wanted = golds if letters else [re.match(r"\d*", gold)[0] for gold in golds]  # type: ignore[index]
    marks = [answer == gold for answer, gold in zip(found, wanted, strict=False)]
    return marks + [False] * (len(golds) - len(marks))


def _original(span: str, gold: str) -> bool:
    if gold.isalpha():
        letters = re.findall("[A-D]" if gold in "ABCD" else "[A-E]", span)
        return bool(letters) and letters[-1] == gold
    numbers = _ORIGINAL_NUMBER.findall(span.replace(",", ""))
    return bool(numbers) and numbers[-1] == _ORIGINAL_NUMBER.findall(gold)[-1]


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
