"""HotpotQA's distractor set as training data: gold documents among others, the answer as target."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.tasks.longbench import read_v1_rows
from longdecode.methods.registry import get_method
from longdecode.training.roles.data.batch import SampleSource, TargetSample

FILE = "hotpot_dev_distractor_v1.json"
FETCH = "`longdecode data fetch ruler`, which makes data/ruler/hotpotqa.json"
CLOSED_BOOK_TOKENS, _CLOSED_BOOK_BATCH = 20, 32
_MAX_QUESTIONS_MIXED = 10_000
"""Questions whose documents may fill one context: an end for a file whose documents are all gold."""


@dataclass(frozen=True, slots=True)
class HotpotQuestion:
    """One question: ``gold`` documents hold the facts, ``others`` distract; each document is ``(title, text)``."""

    question: str
    answer: str
    gold: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, str], ...]


def read_hotpotqa(source: str | Path | None) -> list[HotpotQuestion]:
    """Read the distractor set's development questions.

    Args:
        source: the official json file, a folder that holds it, or the id of a hub dataset in the layout of
            ``hotpotqa/hotpot_qa``.

    Raises:
        DataUnavailableError: none of these, or a file in another format; the message says how to fetch it.
    """
    if not source:
        raise DataUnavailableError(f"the configuration's data.hotpotqa is not set; set it to the file of: {FETCH}")
    place = Path(source).expanduser()
    path = place / FILE if place.is_dir() else place
    if path.is_file():
        try:
            return [_question(row) for row in json.loads(path.read_text(encoding="utf-8"))]
        except (ValueError, KeyError, TypeError) as error:
            raise DataUnavailableError(
                f"{path} is not in the format of {FILE}: {type(error).__name__}: {error}; fetch it with: {FETCH}"
            ) from error
    if place.is_absolute() or path.suffix == ".json":
        raise DataUnavailableError(f"there is no {path}; fetch it with: {FETCH}")
    try:
        from datasets import load_dataset

        rows = load_dataset(str(source), "distractor", split="validation")
        return [_question(row) for row in rows]
    except Exception as error:
        raise DataUnavailableError(
            f"'{source}' is neither a local file nor a hub dataset that can be read from here ({error}); fetch: {FETCH}"
        ) from error


def unasked(questions: Sequence[HotpotQuestion], longbench: Path | None) -> list[HotpotQuestion]:
    """Return the questions that LongBench's HotpotQA does not ask; all where the configuration names no LongBench.

    Raises:
        DataUnavailableError: LongBench's rows are not there; the message says how to fetch them.
    """
    rows = read_v1_rows(longbench, "hotpotqa", 1 << 30) if longbench else []
    asked = {row.text("input").strip().lower() for row in rows}
    return [question for question in questions if question.question.strip().lower() not in asked]


class HotpotQA(SampleSource):
    """Gold documents and random others up to the context's length, then the question; the answer's tokens count.

    Args:
        first_answer: also count the last token of the question, whose output predicts the answer's first.

    Source: Yang et al. 2018 (arXiv 1809.09600) for the data; the released LycheeDecode code for its use here.
    """

    def __init__(self, tokenizer: TextTokenizer, questions: Sequence[HotpotQuestion], first_answer: bool):
        if not questions:
            raise UnsupportedCellError("hotpotqa: no questions are left")
        self.tokenizer = tokenizer
        self.questions = questions
        self.first_answer = first_answer

    def sample(self, rng: random.Random, context_tokens: int) -> TargetSample:
        """One sample whose context has at most ``context_tokens`` tokens.

        Raises:
            UnsupportedCellError: no question has gold documents that fit.
        """
        for chosen in rng.sample(range(len(self.questions)), len(self.questions)):
            made = self._sample(rng, self.questions[chosen], context_tokens)
            if made is not None:
                return made
        raise UnsupportedCellError(f"hotpotqa: no question's documents fit a context of {context_tokens} tokens")

    def _sample(self, rng: random.Random, question: HotpotQuestion, context_tokens: int) -> TargetSample | None:
        encode = self.tokenizer.encode
        opening = self.tokenizer.first_ids + encode("Answer the question from these passages.\n\n")
        asking = encode(f"Question: {question.question}\nAnswer:")
        answer = encode(f" {question.answer}")
        documents = [encode(_passage(document)) for document in question.gold]
        room = context_tokens - len(opening) - len(asking) - sum(map(len, documents))
        if room < 0:
            return None
        for document in self._distractors(rng, question):
            passage = encode(_passage(document))
            if len(passage) > room:
                break
            documents.append(passage)
            room -= len(passage)
        rng.shuffle(documents)
        context = opening + tuple(token for document in documents for token in document) + asking
        kept = len(context) - int(self.first_answer)
        return TargetSample(context[:kept], context[kept:] + answer)

    def _distractors(self, rng: random.Random, question: HotpotQuestion) -> Iterator[tuple[str, str]]:
        yield from question.others
        titles = {title for title, _ in question.gold}
        for _ in range(_MAX_QUESTIONS_MIXED):
            other = rng.choice(self.questions)
            yield from (document for document in (*other.gold, *other.others) if document[0] not in titles)


def without_closed_book(
    questions: Sequence[HotpotQuestion], decoder: Decoder, tokenizer: TextTokenizer, wanted: int
) -> list[HotpotQuestion]:
    """The first ``wanted`` questions that the model does not answer without any passage (20 tokens, greedy)."""
    generator = Generator(decoder)
    method = get_method("full").from_budget(None, decoder.config)
    kept: list[HotpotQuestion] = []
    for first in range(0, len(questions), _CLOSED_BOOK_BATCH):
        if len(kept) >= wanted:
            break
        group = questions[first : first + _CLOSED_BOOK_BATCH]
        prompts = [tokenizer.prompt_ids(f"Question: {question.question}\nAnswer:") for question in group]
        requests = [Request(prompt, CLOSED_BOOK_TOKENS) for prompt in prompts]
        texts = [tokenizer.decode(completion.output_ids) for completion in generator.run(requests, method)]
        kept += [asked for asked, text in zip(group, texts, strict=True) if not answered(asked.answer, text)]
    return kept[:wanted]


def answered(answer: str, text: str) -> bool:
    """Return whether a text holds the answer, whatever its case."""
    return answer.lower() in text.lower()


def _question(row: dict[str, Any]) -> HotpotQuestion:
    """One row of the official file, or of the hub, which has columns; ``supporting_facts`` names the gold documents."""
    facts, context = row["supporting_facts"], row["context"]
    if isinstance(context, dict):
        facts = zip(facts["title"], facts["sent_id"], strict=True)
        context = zip(context["title"], context["sentences"], strict=True)
    gold_titles = {title for title, _ in facts}
    documents = [(str(title), "".join(sentences)) for title, sentences in context]
    gold = tuple(document for document in documents if document[0] in gold_titles)
    others = tuple(document for document in documents if document[0] not in gold_titles)
    return HotpotQuestion(str(row["question"]), str(row["answer"]), gold, others)


def _passage(document: tuple[str, str]) -> str:
    return f"{document[0]}\n{document[1].strip()}\n\n"
