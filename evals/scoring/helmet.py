"""HELMET's marks of a short answer: whether it stands in the completion, or is its first line, both normalized.

Source: github princeton-nlp/HELMET, utils.py (substring_exact_match). The original marks the text behind the answer's
cue too and takes the better mark; that text is a part of the completion, so that its mark is never better.
"""

from __future__ import annotations

import re
import string

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def substring_exact_match(completion: str, reference: str) -> float:
    """Return 1 where the reference stands in the completion, whatever case, punctuation, articles and blanks are."""
    return float(_normalized(reference) in _normalized(completion))


def exact_match(completion: str, reference: str) -> float:
    """Return 1 where the completion's first line, what follows ``label:`` in it, is the reference."""
    line = completion.strip().partition("\n")[0]
    return float(_normalized(re.split(r"(?i)label:", line)[-1]) == _normalized(reference))


def _normalized(text: str) -> str:
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
