"""Marks for many answers in one generation: by the number each answer carries, and as two released scorers give them.

By number, an answer counts for the question whose number it carries, wherever it stands, and a question without one is
wrong. The released scorers match answers to questions by order, so that one answer they cannot read shifts the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

_HEADER = re.compile(r"\b(Answer|Question)[_ ](\d{1,9})")
_SAID = re.compile(r"answer is:?(.*)", re.IGNORECASE)
_NUMBER = re.compile(r"-?\$?\d[\d,]{0,99}(?:\.\d{1,99})?(?:/\d{1,99})?|-?\$?\.\d{1,99}")
_ORIGINAL_NUMBER = re.compile(r"\d*\.?\d+")
_ORIGINAL_SPAN = re.compile(r"(?<=:\n)(.*?)(?=\n\n|$)", re.DOTALL)
_SCOPE_NUMBER = re.compile(r"Answer_\d+:\s*.*?answer is (\d+)", re.DOTALL)
_SCOPE_LETTER = re.compile(r"Answer_\d+:\s*.*?answer is \((.*?)\)")


def marks_by_number(completion: str, golds: Sequence[str], first: int) -> list[bool | None]:
    """Mark the answer to each question: right, wrong, or ``None`` where there is none that can be read.

    An answer runs from its header to the next one, of an answer or a question; the first answer with a number counts.
    Read is what follows its last "answer is", else its last number or letter. Numbers are compared as numbers.

    Args:
        completion: the generation.
        golds: gold answers: digits, or one capital letter.
        first: number of the first question.
    """
    given: dict[int, str] = {}
    headers = [*_HEADER.finditer(completion)]
    ends = [*(header.start() for header in headers[1:]), len(completion)]
    for header, end in zip(headers, ends, strict=False):
        if header[1] == "Answer":
            given.setdefault(int(header[2]), completion[header.end() : end])
    read = [_letter if gold.isalpha() else _number for gold in golds]
    found = [how(given.get(first + index, "")) for index, how in enumerate(read)]
    wanted = [how(gold) for how, gold in zip(read, golds, strict=True)]
    return [None if answer is None else answer == gold for answer, gold in zip(found, wanted, strict=True)]


def original_marks(completion: str, golds: Sequence[str]) -> list[bool]:
    """Mark as LongGenBench's scripts do: by order; the list is as long as the answers found, at most all.

    Source: github Dominic789654/LongGenBench, longgenbench_GSM8K_openai.py and longgenbench_MMLU_openai.py. Not done:
    MMLU's script asks the model again for answers that are missing.
    """
    spans = _ORIGINAL_SPAN.findall("\n".join(completion.split("Answer_")))
    return [_original(span.strip(), gold) for span, gold in zip(spans, golds, strict=False)]


def scope_marks(completion: str, golds: Sequence[str]) -> list[bool]:
    """Mark as SCOPE does: by order, every "answer is" that its pattern reads; a mark for each question.

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


def _number(text: str) -> Fraction | None:
    said = _SAID.findall(text)
    first = _NUMBER.findall(said[-1].rpartition("=")[2]) if said else []
    found = first[:1] or _NUMBER.findall(text)[-1:]
    if not found:
        return None
    top, _, bottom = found[0].replace(",", "").replace("$", "").partition("/")
    return Fraction(Decimal(top)) / (int(bottom or 1) or 1)


def _letter(text: str) -> str | None:
    said = _SAID.findall(text)
    for place, pattern, at in (
        (said[-1] if said else "", r"\(?\b([A-E])\b\)?", 0), (text, r"\(([A-E])\)", -1), (text, r"\b([A-E])\b", -1)
    ):  # fmt: skip
        if found := re.findall(pattern, place):
            return found[at]
    return None
