"""Marks for many answers in one generation: by the number each answer carries, and as two released scorers give them.

``marks_by_number`` is this project's: an answer counts for the question whose number it carries, wherever it stands and
however it is dressed (``longgenbench_answers.py`` says what is read). A question without an answer is wrong.
``original_marks`` and ``scope_marks`` mirror released scorers to the letter, what they cannot read included: they match
answers to questions by order, so that one answer they cannot read shifts the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from longdecode.evals.scoring.longgenbench_answers import numbered_answers, read_letter, read_number

_ORIGINAL_NUMBER = re.compile(r"\d*\.?\d+")
_ORIGINAL_SPAN = re.compile(r"(?<=:\n)(.*?)(?=\n\n|$)", re.DOTALL)
_SCOPE_NUMBER = re.compile(r"Answer_\d+:\s*.*?answer is (\d+)", re.DOTALL)
_SCOPE_LETTER = re.compile(r"Answer_\d+:\s*.*?answer is \((.*?)\)")


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
