"""Rouge-L as LongBench takes it: the F score of the ``rouge`` package, whose rules differ from the ``rouge_score`` one.

Each text is cut into sentences at full stops; the words that the longest common subsequences of all sentence pairs hold
are put in one set, and precision and recall are that set's size over the number of *different* words of each text.

Source: Lin 2004 (ROUGE) for the union of longest common subsequences; the package of github pltrdy/rouge (1.0.1) for
the rules that papers' figures rest on; github THUDM/LongBench, LongBench/metrics.py, for scoring an empty text as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

_EPSILON = 1e-8  # the package's guard against a division by zero; it moves the eighth digit


def rouge_l(prediction: str, reference: str) -> float:
    """Rouge-L F of two texts, in [0, 1]; 0 where either has no sentence."""
    predicted, wanted = _sentences(prediction), _sentences(reference)
    if not predicted or not wanted:
        return 0.0
    common: set[str] = set()
    for sentence in wanted:
        for other in predicted:
            common.update(longest_common_subsequence(sentence, other))
    recall = len(common) / len(set().union(*wanted))
    precision = len(common) / len(set().union(*predicted))
    return 2.0 * (precision * recall) / (precision + recall + _EPSILON)


def longest_common_subsequence(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """One longest common subsequence; among several of a length, the one that walking back from the ends finds first.

    Walking back, a word of ``left`` is dropped only where that keeps a strictly longer rest than dropping one of
    ``right``: the choice decides which words count, so it is the package's.
    """
    lengths = [[0] * (len(right) + 1)]
    for word in left:
        above, row = lengths[-1], [0]
        for j, other in enumerate(right):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        lengths.append(row)
    found: list[str] = []
    i, j = len(left), len(right)
    while i and j:
        if left[i - 1] == right[j - 1]:
            i, j = i - 1, j - 1
            found.append(left[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def _sentences(text: str) -> list[list[str]]:
    # A blank sentence is one empty word, as in the package.
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]
