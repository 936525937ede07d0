"""Many labelled examples and one text to label, labels being numbers drawn for each prompt.

Source: Yen et al. 2024 (HELMET, arXiv 2410.02694) and github princeton-nlp/HELMET, data.py (load_icl), for rounds that
hold each label once, and for numbers in place of names, so that a label is learned from the examples alone. The wording
is this project's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

INSTRUCTION = (
    "Each text below is followed by the number of its label. Work out from the examples which number stands for which "
    "kind of text, and give the number for the last text."
)


@dataclass(frozen=True, slots=True)
class LabelQuestion:
    """A prompt of labelled examples, the text asked about, and the number of its label."""

    prompt: str
    question: str
    answer: str


def label_question(
    rng: random.Random, examples: Mapping[str, Sequence[str]], count: int, text: str, label: str
) -> LabelQuestion:
    """Show ``count`` examples in rounds of one a label, each round in an order of its own, and ask for a label.

    Args:
        rng: random numbers of the prompt: numbers of labels, order of examples.
        examples: texts by label; a label whose texts are used up begins again.
        count: examples shown; the last round may be cut short.
        text: the text asked about.
        label: its label, a key of ``examples``.
    """
    numbers = dict(zip(examples, rng.sample(range(len(examples)), len(examples)), strict=True))
    orders = {name: rng.sample(range(len(texts)), len(texts)) for name, texts in examples.items()}
    shown: list[str] = []
    while len(shown) < count:
        turn = len(shown) // len(examples)
        for name in rng.sample(list(examples), len(examples)):
            place = orders[name][turn % len(orders[name])]
            shown.append(f"{_asked(examples[name][place])} {numbers[name]}")
    return LabelQuestion("\n\n".join([INSTRUCTION, *shown[:count]]) + "\n\n", _asked(text), str(numbers[label]))


def _asked(text: str) -> str:
    return f"Text: {text}\nLabel:"
