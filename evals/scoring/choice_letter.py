"""The letter, A to D, that a completion to a multiple-choice question settles on."""

from __future__ import annotations

import re

from longdecode.evals.scoring.answer_text import box_contents, plain

# A letter is no choice where it is part of a formula (``A = 3``, ``C-H``, ``B_1``), or one of two (``B or C.``).
_LETTER = (
    r"(?:\(\s*(?P<{0}_in>[A-Da-d])\s*\)|(?:\[\s*(?P<{0}_at>[A-D])\s*\]|\{{?\s*(?P<{0}>[A-D])\b)"
    r"(?![_^\u2032{{(=+]|[-/]\w|\s*(?:[=<>+^~\u2248\u2192\u226a\u226b\u2264\u2265]|\\(?!text|boxed|quad)[A-Za-z])))"
    r"(?![)\]}}]?\s*(?:[,&]|\b(?:and|or)\b)\s*\(?[A-D]\b\)?\W{{0,3}}(?:\Z|\n))"
)
_NOUN = r"(?:answer|option|choice|letter|selection|statement)"
_SURE_NOUN = rf"(?:answer|(?:correct|right|best|final)\s+{_NOUN})"
# Fillers are bounded, so that a text of nothing else is searched in linear time.
_FILLER = (
    r"(?:(?:therefore|thus|hence|clearly|indeed|simply|then|now|most|likely|probably|definitely|certainly|given|by|be"
    rf"|the|correct|right|best|final|letter|following|labell?ed|{_NOUN}|\\boxed|\\text)\b|\W){{0,60}}?"
)
_IS = (
    r"(?:,?\s+(?:to|for|among|here|then)\b[^.:\n]{0,60}?)?"
    r"(?:\s+(?:is|(?:would|should|must|will|has to|seems to|appears to)(?:\s+(?!not\b)\w+)?\s+be)\b|'s\b"
    r"|\s*[:=\u2192]|\s*->)"
)
_STATEMENTS = (
    re.compile(rf"(?i:\b{_SURE_NOUN}(?:\s+(?:choice|option|letter))?{_IS}{_FILLER}){_LETTER.format('said')}"),
    re.compile(rf"(?i:\b{_NOUN}(?:\s+(?:choice|option|letter))?{_IS}{_FILLER}){_LETTER.format('said')}"),
    re.compile(
        rf"\b(?i:{_NOUN}\s*){_LETTER.format('said')}(?=\W{{0,9}}(?:$|\n)|\s+(?:is|must|should|would|as|because|since)\b)"
        rf"|{_LETTER.format('other')}\s+(?:is|must be|should be|would be)\s+(?:(?:therefore|thus|clearly|indeed)\s+)?"
        rf"(?i:(?:the\s+)?(?:correct|right|best|answer))"
        rf"|\b(?i:choose|pick|select|chose|picked|selected|go with|going with)\s+(?i:(?:the\s+)?{_NOUN}?)\s*"
        + _LETTER.format("third"),
        re.MULTILINE,
    ),
    re.compile(r"(?:\A|\n)[ #>-]*\(?(?P<said>[A-D])[).:]?\s*\Z"),
)
"""From the surest wording to the least sure; one is asked only where those before it find nothing."""
_BOXED = re.compile(
    rf"(?i:\W{{0,9}}(?:the\b\W{{0,9}})?(?:(?:correct|final|best|right)\b\W{{0,9}})?(?:{_NOUN}\b\W{{0,9}}){{0,3}}"
    rf"(?:is\b)?)\W{{0,9}}?"
    rf"{_LETTER.format('said')}(?!\s+(?:and|or)\b)"
)
_WITHIN_BOX = re.compile(rf"(?i:\b(?:{_NOUN}|so|thus|hence)\b)\W{{0,9}}{_LETTER.format('said')}|\((?P<other>[A-D])\)")
_FIRST = re.compile(r"\W{0,9}(?P<said>[A-D])\b(?![-/]\w|\s+(?:and|or)\b|\s*[,&]\s*[A-D]\b\W{0,3}\Z)")
_BLANK = re.compile(r"\s+")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_LONE = re.compile(r"\W*(?P<said>[A-Da-d])\W*")


def chosen_letter(completion: str) -> str | None:
    """Return the letter that a completion settles on, or ``None``.

    The last box counts where it holds a choice (``D``, ``\\text{(D)}``, ``D. 3 m``, ``option D``), not where a letter
    is a unit or part of a formula in it (``3.2 \\text{ A}``, ``E_1``). Else "answer is D", "correct option: (D)" and
    the like count, the last of them behind the last box with a choice; else that box; and where there is none, weaker
    wordings ("option D is correct", a last line that is a letter) and a formula in the last box that begins with one.
    """
    completion = _TAG.sub(lambda tag: "\n" if tag[1] else "answer: ", completion)
    boxes = box_contents(completion)
    chosen = [(letter, end) for content, end in boxes if (letter := _boxed_letter(content)) is not None]
    if chosen and chosen[-1][1] == boxes[-1][1]:
        return chosen[-1][0]
    text = _BLANK.sub(_one_blank, plain(completion[chosen[-1][1] :] if chosen else completion))
    for statement in _STATEMENTS[:1] if chosen else _STATEMENTS:
        if found := [*statement.finditer(text)]:
            return _letter(found[-1])
    if chosen:
        return chosen[-1][0]
    found_first = _FIRST.match(plain(boxes[-1][0])) if boxes else None
    return _letter(found_first) if found_first else None


def _boxed_letter(content: str) -> str | None:
    text = plain(content)
    found = _LONE.fullmatch(text) or _BOXED.match(text) or _WITHIN_BOX.search(text)
    return _letter(found) if found else None


def _one_blank(found: re.Match[str]) -> str:
    return "\n" if "\n" in found[0] else " "


def _letter(found: re.Match[str]) -> str:
    return next(letter for letter in found.groupdict().values() if letter is not None).upper()
