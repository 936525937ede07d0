"""LongGenBench: 15, 30 or 45 questions of GSM8K, MMLU or CommonsenseQA answered in one generation.

Source: Liu et al. 2024 (LongGenBench, arXiv 2410.04199). 15, 30 and 45 are RetroAttention's sizes (arXiv 2508.09001).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.datasets.longgenbench import Group, read_groups
from longdecode.evals.scoring.longgenbench import marks_by_number, original_marks, scope_marks
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

SIZES = (15, 30, 45)
SOURCES = ("gsm8k", "mmlu", "csqa")
MOST_NEW_TOKENS = 8192
"""Most tokens of a generation: 45 answers of GSM8K take 5,000 to 6,000, over the original's limit of 4,096."""
# This project's words: the released instruction says the same as a system prompt, which not every template has.
INSTRUCTION = (
    "Work through every question below step by step and write each answer in the form of the examples: begin with "
    '"Answer_", the number of the question and a colon, and finish with "The answer is" and the answer. Leave out the '
    "questions themselves, and answer all of them, however many there are."
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Gold answers in order, the number of the first question, and how many questions the release misaligns."""

    golds: tuple[str, ...]
    first: int
    misaligned: int


class LongGenBench(Task):
    """``size`` questions in one generation, marked one by one by the number that each answer carries.

    Questions stand in the data's order. GSM8K and CommonsenseQA give consecutive groups from the first row on; MMLU
    gives the first ``size`` questions of each subject but five of long passages, fewer subjects being a random part.
    All questions count: one without an answer is wrong. ``parts`` are the marks in order of the questions.

    ``measures``: ``answered``, the share with an answer that can be read; ``original_right`` of ``original_counted`` by
    LongGenBench's own scorer, which leaves missing answers out; ``scope_accuracy`` by SCOPE's; ``misaligned_released``,
    the share of questions that the released construction pairs with another question's answer.

    Args:
        source: ``gsm8k``, ``mmlu`` or ``csqa``.
        size: questions of a prompt.
        data: folder or ``hub`` (``read_groups``).

    Deviations: the instruction is in this project's words and in the user's turn; MMLU's options are set apart by
    spaces, as in its examples; up to 8,192 tokens are generated.
    """

    suite = "longgenbench"
    version = 2
    kind: Literal["generate", "loss"] = "generate"
    metric = "accuracy"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "real"
    chat = True
    stop_at_eos = True

    def __init__(self, source: str, size: int, data: Path | None):
        self.name = f"longgenbench_{source}_{size}"
        self.source = source
        self.size = size
        self.data = data

    @functools.cached_property
    def groups(self) -> list[Group]:
        """All groups of questions."""
        return read_groups(self.data, self.source, self.size)

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make the prompts of ``count`` groups, or of all there are.

        Raises:
            UnsupportedCellError: a prompt leaves no room in the context, or the model has no chat template.
            DataUnavailableError: the data is not here; the message says how to fetch it.
        """
        chosen = list(range(len(self.groups)))
        if self.source == "mmlu" and count < len(chosen):
            chosen = sorted(random.Random(f"{self.name}/{seed}").sample(chosen, count))
        made = []
        for index, group in enumerate(self.groups[place] for place in chosen[:count]):
            prompt = f"{instruction(group)}\n\n{questions_text(group)}"
            room = context_tokens - len(tokenizer.prompt_ids(prompt, chat=True))
            if room < 1:
                raise UnsupportedCellError(
                    f"{self.name}: a prompt of {context_tokens - room} tokens leaves nothing to generate in a context "
                    f"of {context_tokens}"
                )
            from_here = self.size if group.misaligned_from is None else group.misaligned_from
            golds = tuple(question.gold for question in group.questions)
            meta = Asked(golds, len(group.demos) + 1, self.size - from_here)
            made.append(Sample(index, prompt, "", min(room, MOST_NEW_TOKENS), None, meta))
        return made

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the share of questions answered right, and a mark for each."""
        asked: Asked = sample.meta
        marks = marks_by_number(completion, asked.golds, asked.first)
        original, scope = original_marks(completion, asked.golds), scope_marks(completion, asked.golds)
        total = len(asked.golds)
        measures = {
            "answered": sum(mark is not None for mark in marks) / total,
            "original_right": float(sum(original)),
            "original_counted": float(len(original)),
            "scope_accuracy": sum(scope) / total,
            "misaligned_released": asked.misaligned / total,
        }
        parts = tuple(float(bool(mark)) for mark in marks)
        return Score(sum(parts) / total, parts, measures)


def instruction(group: Group) -> str:
    """Return the words before the examples, with MMLU's subject."""
    subject = f" The questions are multiple choice, about {group.subject}." if group.subject else ""
    return INSTRUCTION + subject


def questions_text(group: Group) -> str:
    """Return examples and questions as the benchmark sets them: all questions, then all answers, then what is asked."""
    demos = [f"Question_{number}: \n{question}" for number, (question, _) in enumerate(group.demos, 1)]
    demos += [f"Answer_{number}:\n{answer}" for number, (_, answer) in enumerate(group.demos, 1)]
    numbered = enumerate(group.questions, len(group.demos) + 1)
    asked = "".join(f"Question_{number}:\n{question.text}\n" for number, question in numbered)
    examples = "\n\n".join(demos)
    return f"Examples: \n{examples}\n\nFollowing Question: \n{asked}\n"


def _task(source: str, size: int) -> Callable[[Data], Task]:
    return lambda data: LongGenBench(source, size, data.get("longgenbench"))


SUITE = Suite(
    {f"longgenbench_{source}_{size}": _task(source, size) for source in SOURCES for size in SIZES},
    data=("longgenbench",),
)
