"""Many-shot classification: as many labelled examples as fit, and a new text to label."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longdecode.evals.datasets.icl import SETS, LabelledText, read_texts
from longdecode.evals.generators.icl import LabelQuestion, label_question
from longdecode.evals.scoring.helmet import exact_match
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.generated import filling, sample_rng

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

MAX_NEW_TOKENS = 20


class ManyShot(Task):
    """One set's texts to label, each after examples of its own; the text asked about is decoded through the method.

    Examples come from the train split, round by round one of each label, as many as fit (``filling``). Texts asked
    about come from the test split in an order that the seed draws, the same at every context. Labels are numbers that
    each prompt draws anew.

    Args:
        dataset: a key of ``datasets.icl.SETS``.
        data: where the sets are, as ``read_texts`` takes it.

    Source: Yen et al. 2024 (HELMET, arXiv 2410.02694); github princeton-nlp/HELMET, configs/icl.yaml: 20 tokens to
    generate, greedy, no chat template. Deviations: the wording; as many examples as fit, where the original fixes their
    number by length; the text asked about is not prefilled, unless ``question: prompt`` asks for it.
    """

    suite = "icl"
    version = 1
    kind: Literal["generate", "loss"] = "generate"
    metric = "exact_match"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "real"
    stop_at_eos = True

    def __init__(self, dataset: str, data: Path | None):
        self.name = f"icl_{dataset}"
        self.dataset = dataset
        self.data = data

    @functools.cached_property
    def examples(self) -> Mapping[str, Sequence[str]]:
        """Texts of the train split by label."""
        found: dict[str, list[str]] = {}
        for row in read_texts(self.dataset, "train", self.data):
            found.setdefault(row.label, []).append(row.text)
        return found

    @functools.cached_property
    def asked(self) -> Sequence[LabelledText]:
        """Texts of the test split whose label has examples."""
        return [row for row in read_texts(self.dataset, "test", self.data) if row.label in self.examples]

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Ask about ``count`` texts, or about all of the test split.

        Raises:
            UnsupportedCellError: not one example of each label fits.
            DataUnavailableError: the set is not here; the message says how to fetch it.
        """
        order = random.Random(f"{self.name}/{seed}").sample(self.asked, len(self.asked))[:count]

        def make(index: int, examples: int) -> LabelQuestion:
            rng = sample_rng(self.name, context_tokens, seed, index)
            row = order[max(index, 0)]
            return label_question(rng, self.examples, examples, row.text, row.label)

        def tokens(made: LabelQuestion) -> int:
            return len(tokenizer.prompt_ids(made.prompt)) + len(tokenizer.encode(made.question))

        smallest = len(self.examples)
        made = filling(self, make, tokens, smallest, len(order), context_tokens, MAX_NEW_TOKENS)
        return [
            Sample(index, question.prompt, question.question, MAX_NEW_TOKENS, None, question.answer)
            for index, question in enumerate(made)
        ]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """1 where the completion's first line is the label's number, else 0."""
        return Score(exact_match(completion, sample.meta))


def _task(dataset: str) -> Callable[[Data], Task]:
    return lambda data: ManyShot(dataset, data.get("icl"))


SUITE = Suite({f"icl_{dataset}": _task(dataset) for dataset in SETS}, data=("icl",), question="decoded")
