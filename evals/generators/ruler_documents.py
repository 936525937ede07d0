"""RULER's question answering: a question of SQuAD or HotpotQA, its documents hidden among others of the data set.

Source: github NVIDIA/RULER, scripts/data/synthetic/qa.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from longdecode.evals.generators.ruler_question import DOCUMENTS, RulerQuestion, fill


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """A question with its answers, the documents that hold them and those to draw first (indices)."""

    query: str
    answers: tuple[str, ...]
    documents: tuple[int, ...]
    nearby: tuple[int, ...] = ()


def question_answering(
    rng: random.Random, question: DocumentQuestion, documents: Sequence[str], size: int
) -> RulerQuestion:
    """The question after ``size`` documents in random order; more than there are come repeated."""
    if size >= len(documents):
        shown = (list(documents) * -(-size // len(documents)))[:size]
    else:
        wanted = size - len(question.documents)
        if wanted <= len(question.nearby):
            others = rng.sample(question.nearby, wanted)
        else:
            kept = {*question.documents, *question.nearby}
            rest = [i for i in range(len(documents)) if i not in kept]
            others = [*question.nearby, *rng.sample(rest, wanted - len(question.nearby))]
        shown = [documents[i] for i in (*question.documents, *others)]
    rng.shuffle(shown)
    context = "\n\n".join(f"Document {i}:\n{document}" for i, document in enumerate(shown, start=1))
    return fill(DOCUMENTS, question.answers, context=context, query=question.query)
