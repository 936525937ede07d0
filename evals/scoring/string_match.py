"""Marks of short answers by what stands in a completion: RULER's as it stands, HELMET's normalized.

Source: github NVIDIA/RULER, scripts/eval/synthetic/constants.py (string_match_all, whose largest mark is
string_match_part); github princeton-nlp/HELMET, utils.py (substring_exact_match). HELMET marks the text behind the
answer's cue too and takes the better mark; that text is a part of the completion, so that its mark is never better.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def string_match_all(completion: str, references: Sequence[str]) -> tuple[float, ...]:
    """One mark a reference: whether it stands in the completion, in any case of letters."""
    said = completion.lower()
    return tuple(float(reference.lower() in said) for reference in references)


def substring_exact_match(completion: str, reference: str) -> float:
    """Return 1 where the reference stands in the completion, whatever case, punctuation, articles and blanks are."""
    return float(normalized(reference) in normalized(completion))


def exact_match(completion: str, reference: str) -> float:
    """Return 1 where the completion's first line, what follows ``label:`` in it, is the reference."""
    line = completion.strip().partition("\n")[0]
    return float(normalized(re.split(r"(?i)label:", line)[-1]) == normalized(reference))


def normalized(text: str) -> str:
    """Return a text lowered, without punctuation and articles, its words a blank apart (SQuAD's normalization)."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
