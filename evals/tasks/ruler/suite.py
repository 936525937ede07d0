"""RULER's 13 tasks, generated for any tokenizer and length.

Source: Hsieh et al. 2024 (RULER, arXiv 2404.06654); github NVIDIA/RULER, scripts/synthetic.yaml.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.datasets.ruler import common_vocabulary, essay_words, large_vocabulary, read_questions
from longdecode.evals.generators.ruler_chains import EXAMPLE_TOKENS, HOPS, tracking_example, variable_tracking
from longdecode.evals.generators.ruler_documents import DocumentQuestion, question_answering
from longdecode.evals.generators.ruler_niah import NiahSpec, niah
from longdecode.evals.generators.ruler_question import (
    COMMON_WORDS,
    DOCUMENTS,
    FREQUENT_WORDS,
    NIAH,
    VARIABLE_TRACKING,
    Make,
    RulerQuestion,
    largest_fitting,
    shrunk_to_fit,
)
from longdecode.evals.generators.ruler_words import (
    COMMON,
    LEAST_CODED_WORDS,
    LONG,
    LONG_FROM_TOKENS,
    SHORT,
    common_words,
    frequent_words,
)
from longdecode.evals.scoring.ruler import string_match_all, string_match_part
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.generated import sample_rng

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

NIAH_TASKS: Mapping[str, NiahSpec] = {
    "niah_single_1": NiahSpec("noise"),
    "niah_single_2": NiahSpec("essay"),
    "niah_single_3": NiahSpec("essay", value_kind="uuids"),
    "niah_multikey_1": NiahSpec("essay", keys=4),
    "niah_multikey_2": NiahSpec("needle"),
    "niah_multikey_3": NiahSpec("needle", key_kind="uuids", value_kind="uuids"),
    "niah_multivalue": NiahSpec("essay", values=4),
    "niah_multiquery": NiahSpec("essay", queries=4),
}
_DATA_SETS = {"qa_1": "squad", "qa_2": "hotpotqa"}
_TEMPLATES = {
    "vt": VARIABLE_TRACKING, "cwe": COMMON_WORDS, "fwe": FREQUENT_WORDS, "qa_1": DOCUMENTS, "qa_2": DOCUMENTS,
}  # fmt: skip
RULER_TASKS = (*NIAH_TASKS, *_TEMPLATES)
_TOKENS_A_CODED_WORD = 50  # the coded vocabulary has one word for so many tokens of length
_LEAST_CODED_VOCABULARY = 8
_LEAST_LINES = 2


class Ruler(Task):
    """One of RULER's tasks; the answer's prefix is decoded through the method, since it begins the model's own words.

    Prompt, answer prefix and generation fill the context as far as the haystack's grain allows; special tokens and chat
    templates are counted, as the original counts templates.

    Args:
        kind: a name of ``RULER_TASKS``.
        folder: essays, word lists, squad.json and hotpotqa.json, for the tasks that read one.
        chat: put the prompt through the model's chat template, as the original does for instruction-tuned models.

    Deviations: samples have random numbers of their own rather than one stream; the generators say theirs.
    """

    version = 1
    unit = "fraction"
    higher_is_better = True
    stop_at_eos = True

    def __init__(self, kind: str, folder: Path | None, *, chat: bool = False):
        self.suite = "ruler_chat" if chat else "ruler"
        self.name = f"ruler_{kind}{'_chat' if chat else ''}"
        self.ruler_kind = kind
        self.folder = folder
        self.chat = chat
        self.kind: Literal["generate", "loss"] = "generate"
        self.data_source: Literal["generated", "real"] = "real" if kind in _DATA_SETS else "generated"
        self.metric = "string_match_part" if kind in _DATA_SETS else "string_match_all"
        self.max_new_tokens = (NIAH if kind in NIAH_TASKS else _TEMPLATES[kind]).max_new_tokens

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Generate ``count`` samples; of the question-answering tasks, one a question of the data set at most.

        Raises:
            UnsupportedCellError: the task does not fit this context, or the model has no chat template.
            DataUnavailableError: the task's data is not here; the message says how to fetch it.
        """
        room = context_tokens - self.max_new_tokens

        def tokens(question: RulerQuestion) -> int:
            return len(tokenizer.prompt_ids(question.prompt, self.chat)) + len(tokenizer.encode(question.answer_prefix))

        def rng(index: int) -> random.Random:
            return sample_rng(self.name, context_tokens, seed, index)

        try:
            makes, smallest = self._makes(context_tokens, count, tokenizer)
            # One size for all, found on a question of its own as in the original.
            size = largest_fitting(lambda lines: tokens(makes[0](rng(-1), lines)), room, smallest)
            questions = [
                shrunk_to_fit(partial(_seeded, make, rng, index), size, smallest, lambda made: tokens(made) <= room)
                for index, make in enumerate(makes)
            ]
        except ValueError as error:
            raise UnsupportedCellError(f"{self.name} does not fit {context_tokens} tokens: {error}") from error
        return [
            Sample(
                index, question.prompt, question.answer_prefix, self.max_new_tokens, None, question.answers,
                question_chars=question.question_chars,
            )
            for index, question in enumerate(questions)
        ]  # fmt: skip

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """The share of references that stand in the completion, or for questions on documents, whether any does."""
        if self.ruler_kind in _DATA_SETS:
            return Score(string_match_part(completion, sample.meta))
        parts = string_match_all(completion, sample.meta)
        return Score(fmean(parts), parts)

    def _makes(self, context_tokens: int, count: int, tokenizer: TextTokenizer) -> tuple[list[Make], int]:
        """One generator a sample, and the smallest haystack it takes; ``ValueError`` where the context is too short."""
        if self.ruler_kind in NIAH_TASKS:
            spec = NIAH_TASKS[self.ruler_kind]
            essay = essay_words(self.folder) if spec.haystack == "essay" else ()
            return [lambda rng, size: niah(rng, spec, size, essay)] * count, max(spec.needles, _LEAST_LINES)
        if self.ruler_kind == "vt":
            example = _example_size(tokenizer)
            return [lambda rng, size: variable_tracking(rng, size, example)] * count, HOPS + 1
        if self.ruler_kind == "cwe":
            few = common_vocabulary(self.folder)
            repeats = SHORT if context_tokens < LONG_FROM_TOKENS else LONG

            def common(rng: random.Random, size: int) -> RulerQuestion:
                return common_words(rng, size, few if size <= len(few) else large_vocabulary(self.folder), repeats)

            return [common] * count, COMMON + 1
        if self.ruler_kind == "fwe":
            vocabulary = (context_tokens - self.max_new_tokens) // _TOKENS_A_CODED_WORD
            if vocabulary < _LEAST_CODED_VOCABULARY:
                raise ValueError(f"a coded vocabulary of {vocabulary} words is too small")
            return [lambda rng, size: frequent_words(rng, size, vocabulary)] * count, LEAST_CODED_WORDS
        questions, documents = read_questions(self.folder, _DATA_SETS[self.ruler_kind])
        asked = questions[:count]
        makes = [partial(_answer, question=question, documents=documents) for question in asked]
        return list(makes), max(len(question.documents) for question in asked)


def _answer(rng: random.Random, size: int, *, question: DocumentQuestion, documents: Sequence[str]) -> RulerQuestion:
    return question_answering(rng, question, documents, size)


def _seeded(make: Make, rng: Callable[[int], random.Random], index: int, size: int) -> RulerQuestion:
    """Sample ``index`` at a size; it depends on nothing that happened before, so that a retry is reproducible."""
    return make(rng(index), size)


def _example_size(tokenizer: TextTokenizer) -> int:
    """Lines of noise in variable tracking's worked example: what fits 500 tokens, or the fewest there can be."""
    rng_seed = "ruler_vt/example"
    try:
        return largest_fitting(
            lambda size: len(tokenizer.encode(tracking_example(random.Random(rng_seed), size).text)),
            EXAMPLE_TOKENS,
            HOPS + 1,
        )
    except ValueError:
        return HOPS + 1


def ruler_suite(*, chat: bool) -> Suite:
    """Return the suite of the 13 tasks."""

    def task(kind: str) -> Callable[[Data], Task]:
        return lambda data: Ruler(kind, data.get("ruler"), chat=chat)

    return Suite(
        {f"ruler_{kind}{'_chat' * chat}": task(kind) for kind in RULER_TASKS}, data=("ruler",), question="prompt"
    )


SUITE = ruler_suite(chat=False)
