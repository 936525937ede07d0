"""RULER's 13 tasks, generated for any tokenizer and length: the suites ``ruler`` and ``ruler_chat``.

Source: Hsieh et al. 2024 (RULER, arXiv 2404.06654); github NVIDIA/RULER, scripts/synthetic.yaml.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.config_values import read_yaml
from longdecode.evals.datasets.reader import SOURCES, as_text, read_json, read_text
from longdecode.evals.generators import ruler as make
from longdecode.evals.generators.prose import Episode
from longdecode.evals.generators.ruler import DocumentQuestion, NiahSpec
from longdecode.evals.scoring.answer_text import string_match_all
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.fitting import fill_context, largest_fitting

NIAH_TASKS: Mapping[str, NiahSpec] = {
    name: NiahSpec(**values) for name, values in read_yaml(Path(__file__).with_suffix(".yaml")).items()
}
_DATA_SETS = {"qa_1": "squad", "qa_2": "hotpotqa"}
RULER_TASKS = (*NIAH_TASKS, "vt", "cwe", "fwe", *_DATA_SETS)
_TOKENS_A_CODED_WORD = 50  # the coded vocabulary has one word for so many tokens of length
_LEAST_CODED_VOCABULARY = 8
_LEAST_LINES = 2
ESSAYS, WORDS = SOURCES["ruler_essays"], SOURCES["ruler_words"]
_WORD_LISTS = ("nounlist.txt", "adjectivelist.txt", "verblist.txt")
Questions = tuple[tuple[DocumentQuestion, ...], tuple[str, ...]]
Make = Callable[[random.Random, int], Episode]
"""A question from random numbers and a haystack size; the size's unit is the generator's (words, lines, documents)."""


class Ruler(Task):
    """One of RULER's tasks; the answer's prefix is decoded through the method, since it begins the model's own words.

    Prompt, answer prefix and generation fill the context as far as the haystack's grain allows; special tokens and chat
    templates are counted, as the original counts templates. One size serves all samples, found on a question of its own
    as in the original.

    Args:
        kind: a name of ``RULER_TASKS``.
        data: ``ruler`` is a folder with essays, word lists, squad.json and hotpotqa.json, for the tasks that read one.
        chat: put the prompt through the model's chat template, as the original does for instruction-tuned models.

    Deviations: samples have random numbers of their own rather than one stream; the generators say theirs.
    """

    stop_at_eos = True

    def __init__(self, kind: str, data: Data, *, chat: bool = False):
        super().__init__(data)
        self.ruler_kind = kind
        self.chat = chat
        self.data_source = "real" if kind in _DATA_SETS else "generated"
        self.metric = "string_match_part" if kind in _DATA_SETS else "string_match_all"
        template = "niah" if kind in NIAH_TASKS else "qa" if kind in _DATA_SETS else kind
        self.max_new_tokens: int = make.TEMPLATES[template]["max_new_tokens"]

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Generate ``count`` samples; of the question-answering tasks, one a question of the data set at most.

        Raises:
            UnsupportedCellError: the task does not fit this context, or the model has no chat template.
            DataUnavailableError: the task's data is not here; the message says how to fetch it.
        """
        makes, smallest = self._makes(context_tokens, count, tokenizer)

        def sample(index: int, size: int) -> Sample:
            made = makes[max(index, 0)](self.rng(context_tokens, seed, index), size)
            return Sample(
                index, made.prompt, made.question, self.max_new_tokens, None, made.items,
                question_chars=made.asked_chars,
            )  # fmt: skip

        return fill_context(self, sample, smallest, len(makes), context_tokens, tokenizer)

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the share of references that stand in the completion; of document questions, whether any does."""
        parts = string_match_all(completion, sample.meta)
        return Score(max(parts)) if self.ruler_kind in _DATA_SETS else Score(fmean(parts), parts)

    def _makes(self, context_tokens: int, count: int, tokenizer: TextTokenizer) -> tuple[Sequence[Make], int]:
        """Return one generator a sample, and the smallest haystack it takes."""
        folder, kind = self.data.get("ruler"), self.ruler_kind
        if kind in NIAH_TASKS:
            spec = NIAH_TASKS[kind]
            essay = essay_words(folder) if spec.haystack == "essay" else ()
            return [partial(make.niah, spec=spec, essay=essay)] * count, max(spec.needles, _LEAST_LINES)
        if kind == "vt":
            tracking = partial(make.variable_tracking, example_size=_example_size(tokenizer))
            return [tracking] * count, make.HOPS + 1
        if kind == "cwe":
            few = common_vocabulary(folder)
            long = context_tokens >= make.LONG_FROM_TOKENS

            def common(rng: random.Random, size: int) -> Episode:
                return make.common_words(rng, size, few if size <= len(few) else large_vocabulary(folder), long)

            return [common] * count, make.COMMON + 1
        if kind == "fwe":
            vocabulary = (context_tokens - self.max_new_tokens) // _TOKENS_A_CODED_WORD
            if vocabulary < _LEAST_CODED_VOCABULARY:
                raise UnsupportedCellError(f"{self.name} does not fit {context_tokens} tokens: too few coded words")
            return [partial(make.frequent_words, vocabulary=vocabulary)] * count, make.LEAST_CODED_WORDS
        questions, documents = read_questions(folder, _DATA_SETS[kind])
        asked = questions[:count]
        makes = [partial(make.question_answering, question=question, documents=documents) for question in asked]
        return makes, max(len(question.documents) for question in asked)


def _example_size(tokenizer: TextTokenizer) -> int:
    """Return the lines of noise in variable tracking's example: what fits 500 tokens, or the fewest there can be."""

    def tokens(size: int) -> int:
        example = make.variable_chain(random.Random("ruler_vt/example"), size, make.EXAMPLE_LETTERS)
        return len(tokenizer.encode(example.text))

    try:
        return largest_fitting(tokens, make.EXAMPLE_TOKENS, make.HOPS + 1)
    except ValueError:
        return make.HOPS + 1


def essay_words(source: Path | None) -> tuple[str, ...]:
    """Return the words of all .txt files of ``essays``, by name.

    Raises:
        DataUnavailableError: there are none; the message says how to fetch them.
    """
    folder = ESSAYS.place(source) / "essays"
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise ESSAYS.unavailable(f"no *.txt in {folder}")
    return tuple(word for file in files for word in read_text(ESSAYS, file).split())


def common_vocabulary(source: Path | None) -> tuple[str, ...]:
    """Return nouns, adjectives and verbs of the wonderwords package, each once, sorted.

    Raises:
        DataUnavailableError: a list is missing; the message says how to fetch it.
    """
    folder = WORDS.place(source)
    words = {word.strip() for name in _WORD_LISTS for word in read_text(WORDS, folder / name).splitlines()}
    return tuple(sorted(filter(None, words)))


@functools.cache
def large_vocabulary(source: Path | None) -> tuple[str, ...]:
    """Return the longer list that very long contexts need, in its file's order; raises as ``common_vocabulary``."""
    file = WORDS.place(source) / "english_words.json"
    raw = read_json(WORDS, file)
    with WORDS.reading(f"{file} is not in the expected format"):
        return tuple(dict.fromkeys(map(as_text, raw.values())))


@functools.lru_cache(maxsize=2)
def read_questions(source: Path | None, name: str) -> Questions:
    """Return questions and documents of ``squad`` or ``hotpotqa``.

    Raises:
        DataUnavailableError: the file is missing or not in the data set's format.
    """
    data = SOURCES[name]
    file = data.place(source) / f"{name}.json"
    raw = read_json(data, file)
    with data.reading(f"{file} is not in the expected format"):
        found = _squad(raw) if name == "squad" else _hotpotqa(raw)
    if not found[0]:
        raise data.unavailable(f"{file} has no question")
    return found


def _squad(raw: Any) -> Questions:
    documents = tuple(sorted({as_text(part["context"]) for article in raw["data"] for part in article["paragraphs"]}))
    place = {document: i for i, document in enumerate(documents)}
    questions = []
    for article in raw["data"]:
        own = [place[part["context"]] for part in article["paragraphs"]]
        for part, gold in zip(article["paragraphs"], own, strict=True):
            nearby = tuple(dict.fromkeys(i for i in own if i != gold))
            for item in (item for item in part["qas"] if not item.get("is_impossible", False)):
                if not item["answers"]:
                    raise ValueError(f"{item['question']!r} has no answer")
                answers = tuple(as_text(answer["text"], blank=False) for answer in item["answers"])
                questions.append(DocumentQuestion(as_text(item["question"]), answers, (gold,), nearby))
    return tuple(questions), documents


def _hotpotqa(raw: Any) -> Questions:
    texts = [[as_text(f"{as_text(title)}\n{''.join(parts)}") for title, parts in item["context"]] for item in raw]
    documents = tuple(sorted({document for own in texts for document in own}))
    place = {document: i for i, document in enumerate(documents)}
    questions = []
    for item, own in zip(raw, texts, strict=True):
        holding = tuple(dict.fromkeys(place[document] for document in own))
        questions.append(DocumentQuestion(as_text(item["question"]), (as_text(item["answer"], blank=False),), holding))
    return tuple(questions), documents


def _suite(chat: bool) -> Suite:
    tasks = {f"ruler_{kind}{'_chat' * chat}": partial(Ruler, kind, chat=chat) for kind in RULER_TASKS}
    return Suite(tasks, data=("ruler",), question="prompt")


SUITES: Mapping[str, Suite] = {"ruler": _suite(chat=False), "ruler_chat": _suite(chat=True)}
