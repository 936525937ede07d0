"""LongBench's metrics, each from a prediction and one reference to a score in [0, 1].

Source: Bai et al. 2023 (arXiv 2308.14508); github THUDM/LongBench @ 2e00731f, LongBench/metrics.py and eval.py, whose
scores of real predictions these functions give to two decimals (tests/evals/test_longbench_scoring.py).
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.scoring.answer_text import normalized
from longdecode.evals.scoring.choice_letter import chosen_letter

Classes = Sequence[str] | None
_FIRST_LETTER = re.compile(r"\W*([A-D])\b(?!\s+[a-z])")  # "A table shows" names no choice
_Metric = Callable[[str, str, Classes], float]

_EPSILON = 1e-8  # the package's guard against a division by zero; it moves the eighth digit


def score_answers(metric: str, prediction: str, answers: Sequence[str], classes: Classes = None) -> float:
    """The best score over a sample's references.

    Args:
        metric: a key of ``METRICS``.
        prediction: the completion, or its first line where the task marks that alone.
        answers: the references.
        classes: all class names, for ``classification``.
    """
    return max((METRICS[metric](prediction, answer, classes) for answer in answers), default=0.0)


def first_line(prediction: str) -> str:
    """Return the first line that is not empty, which few-shot tasks mark: models go on with an example of their own."""
    return prediction.lstrip("\n").split("\n")[0]


def qa_f1(prediction: str, answer: str, _: Classes = None) -> float:
    """F1 over words, both texts lowered and stripped of punctuation and articles."""
    predicted, wanted = normalized(prediction).split(), normalized(answer).split()
    same = sum((Counter(predicted) & Counter(wanted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction: str, reference: str, _: Classes = None) -> float:
    """Rouge-L as the ``rouge`` package takes it, whose rules differ from the ``rouge_score`` one; 0 without a sentence.

    Each text is cut into sentences at full stops; the words that the longest common subsequences of all sentence pairs
    hold are put in one set, and precision and recall are that set's size over the number of *different* words of each
    text.

    Source: Lin 2004 (ROUGE) for the union of longest common subsequences; the package of github pltrdy/rouge (1.0.1)
    for the rules that papers' figures rest on. Of the subsequences of a length both packages take the same one.
    """
    from rouge_score.rouge_scorer import lcs_ind  # seconds to import

    predicted, wanted = _sentences(prediction), _sentences(reference)
    if not predicted or not wanted:
        return 0.0
    common: set[str] = set()
    for sentence in wanted:
        for other in predicted:
            common.update(other[place] for place in lcs_ind(other, sentence))
    recall = len(common) / len(set().union(*wanted))
    precision = len(common) / len(set().union(*predicted))
    return 2.0 * (precision * recall) / (precision + recall + _EPSILON)


def _sentences(text: str) -> list[list[str]]:
    # A blank sentence is one empty word, as in the package.
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def classification(prediction: str, answer: str, classes: Classes = None) -> float:
    """One over the number of class names the prediction holds, where the right one is among them.

    A name that is part of the right name does not count against it. The official loop removes such names while it
    walks the list and so skips the name after each; that is kept, since published scores contain it.
    """
    found = [name for name in classes or () if name in prediction]
    i = 0
    while i < len(found):
        if found[i] in answer and found[i] != answer:
            found.remove(found[i])
        i += 1
    return 1.0 / len(found) if answer in found else 0.0


def count(prediction: str, answer: str, _: Classes = None) -> float:
    """The share of the numbers in the prediction that are the right one."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(answer) / len(numbers) if numbers else 0.0


def retrieval(prediction: str, answer: str, _: Classes = None) -> float:
    """The share of the numbers in the prediction that are the paragraph's."""
    found = re.search(r"Paragraph (\d+)", answer)
    if found is None:
        raise DataUnavailableError(f"the reference {answer[:60]!r} names no paragraph: not LongBench's data")
    return count(prediction, found[1])


def code_similarity(prediction: str, answer: str, _: Classes = None) -> float:
    """Edit similarity, in whole percents, of the first line that is code and not a comment or a fence.

    The official ``fuzz.ratio`` is Python's ``SequenceMatcher`` where the optional Levenshtein package is absent.
    """
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if not line or not answer:
        return 0.0
    return round(100 * difflib.SequenceMatcher(None, line, answer).ratio()) / 100


def choice(prediction: str, answer: str, _: Classes = None) -> float:
    """Return 1 where a multiple-choice answer names the right letter.

    The letter that the prediction settles on counts (``chosen_letter``), else one that it begins with.
    """
    first = _FIRST_LETTER.match(prediction)
    return float(answer == (chosen_letter(prediction) or (first[1] if first else None)))


METRICS: Mapping[str, _Metric] = {
    **{mark.__name__: mark for mark in (qa_f1, rouge_l, classification, count, retrieval, code_similarity)},
    "accuracy": choice,
}
