"""HELMET's mark of a short answer: whether it stands in the completion once both are normalized.

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


def _normalized(text: str) -> str:
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
