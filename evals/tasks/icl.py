"""Many-shot classification: as many labelled examples as fit, and a new text to label.

Source: Yen et al. 2024 (HELMET, arXiv 2410.02694); github princeton-nlp/HELMET, data.py (load_icl) and
configs/icl.yaml: rounds that hold each label once, numbers in place of names, so that a label is learned from the
examples alone, 20 tokens to generate, greedy, no chat template. Deviations: the wording is this project's; as many
examples as fit, where the original fixes their number by length; the text asked about is not prefilled, unless
``question: prompt`` asks for it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.datasets.reader import SOURCES, read_rows
from longdecode.evals.scoring.answer_text import exact_match
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.fitting import fill_context

MAX_NEW_TOKENS = 20
INSTRUCTION = (
    "Each text below is followed by the number of its label. Work out from the examples which number stands for which "
    "kind of text, and give the number for the last text."
)
HELD_OUT = 0.1
"""Share of each label's rows that a set without a test split is asked about."""
SETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "trec_coarse": ("trec", ("coarse_label",)),
    "trec_fine": ("trec", ("fine_label",)),
    "banking77": ("banking77", ("category", "label")),
    "clinc150": ("clinc150", ("intent",)),
    "nlu": ("nlu", ("label",)),
}
"""Names of the sources, and the fields that may hold a row's label, the first that a copy has."""
_WITHOUT_TEST = ("nlu",)


class ManyShot(Task):
    """One set's texts to label, each after examples of its own; the text asked about is decoded through the method.

    Examples come from the train split, round by round one of each label, as many as fit. Texts asked about come from
    the test split in an order that the seed draws, the same at every context. Labels are numbers that each prompt draws
    anew.

    Args:
        dataset: a key of ``SETS``.
        data: ``icl`` says where the sets are, as ``read_texts`` takes it.
    """

    metric = "exact_match"
    data_source = "real"
    stop_at_eos = True

    def __init__(self, dataset: str, data: Data):
        super().__init__(data)
        self.dataset = dataset

    @functools.cached_property
    def examples(self) -> Mapping[str, Sequence[str]]:
        """Texts of the train split by label."""
        return _by_label(read_texts(self.dataset, "train", self.data.get("icl")))

    @functools.cached_property
    def asked(self) -> Sequence[tuple[str, str]]:
        """Texts of the test split whose label has examples, with their labels."""
        asked = read_texts(self.dataset, "test", self.data.get("icl"))
        if not (known := [(text, label) for text, label in asked if label in self.examples]):
            raise SOURCES[SETS[self.dataset][0]].unavailable(f"{self.data['icl']}: no text has an example's label")
        return known

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Ask about ``count`` texts, or about all of the test split.

        Raises:
            UnsupportedCellError: not one example of each label fits.
            DataUnavailableError: the set is not here; the message says how to fetch it.
        """
        order = random.Random(f"{self.name}/{seed}").sample(self.asked, len(self.asked))[:count]

        def make(index: int, examples: int) -> Sample:
            rng = self.rng(context_tokens, seed, index)
            prompt, question, answer = label_question(rng, self.examples, examples, *order[max(index, 0)])
            return Sample(index, prompt, question, MAX_NEW_TOKENS, None, answer)

        return fill_context(self, make, len(self.examples), len(order), context_tokens, tokenizer)

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the completion's first line is the label's number, else 0."""
        return Score(exact_match(completion, sample.meta))


def label_question(
    rng: random.Random, examples: Mapping[str, Sequence[str]], count: int, text: str, label: str
) -> tuple[str, str, str]:
    """Show ``count`` examples in rounds of one a label, each round in an order of its own, and ask for a label.

    Args:
        rng: random numbers of the prompt: numbers of labels, order of examples.
        examples: texts by label; a label whose texts are used up begins again.
        count: examples shown; the last round may be cut short.
        text: the text asked about.
        label: its label, a key of ``examples``.

    Returns:
        The prompt of labelled examples, the text asked about, and the number of its label.
    """
    numbers = dict(zip(examples, rng.sample(range(len(examples)), len(examples)), strict=True))
    orders = {name: rng.sample(range(len(texts)), len(texts)) for name, texts in examples.items()}
    asked = "Text: {}\nLabel:".format
    shown: list[str] = []
    while len(shown) < count:
        turn = len(shown) // len(examples)
        for name in rng.sample(list(examples), len(examples)):
            place = orders[name][turn % len(orders[name])]
            shown.append(f"{asked(examples[name][place])} {numbers[name]}")
    return "\n\n".join([INSTRUCTION, *shown[:count]]) + "\n\n", asked(text), str(numbers[label])


def read_texts(name: str, part: Literal["train", "test"], source: Path | None) -> list[tuple[str, str]]:
    """Return the texts of one part of a set with their labels, in the set's own order.

    A set without a test split gives a tenth of each label's texts to ``test``, drawn once and for all.

    Args:
        name: a key of ``SETS``.
        part: what is shown with labels, or what is asked.
        source: a folder with ``trec/``, ``banking77/``, ``clinc150/`` and ``nlu/``, or ``hub``.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    place, fields = SETS[name]
    split = "train" if name in _WITHOUT_TEST else part
    trec = "TREC_*.label" if split == "test" else "train*.label"
    data = replace(SOURCES[place], split=split, files=(f"{split}*.jsonl", f"{split}*.csv", trec))
    rows = read_rows(data, source)
    texts = [(" ".join(row.text("text").split()), row.answer(row.first(*fields))) for row in rows]
    return _divided(texts, part) if name in _WITHOUT_TEST else texts


def _by_label(texts: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text, label in texts:
        found.setdefault(label, []).append(text)
    return found


def _divided(texts: Sequence[tuple[str, str]], part: str) -> list[tuple[str, str]]:
    chosen: list[tuple[str, str]] = []
    for label, own in _by_label(texts).items():
        held = set(random.Random(f"held out/{label}").sample(range(len(own)), max(1, round(HELD_OUT * len(own)))))
        chosen += [(text, label) for place, text in enumerate(own) if (place in held) == (part == "test")]
    return chosen


SUITES: Mapping[str, Suite] = {
    "icl": Suite({f"icl_{name}": partial(ManyShot, name) for name in SETS}, data=("icl",), question="decoded")
}
