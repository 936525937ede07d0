"""LongGenBench: 15, 30 or 45 questions of GSM8K, MMLU or CommonsenseQA answered in one generation.

Source: Liu et al. 2024 (LongGenBench, arXiv 2410.04199); github Dominic789654/LongGenBench for GSM8K and MMLU, github
Linking-ai/SCOPE for CommonsenseQA. 15, 30 and 45 are RetroAttention's sizes (arXiv 2508.09001).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longdecode.evals.config_values import read_yaml
from longdecode.evals.datasets import reader
from longdecode.evals.datasets.reader import SOURCES, DataSet, Row
from longdecode.evals.scoring.longgenbench import marks_by_number, original_marks, scope_marks
from longdecode.evals.tasks.base import Data, ReasoningTask, Sample, Score, Suite

SIZES = (15, 30, 45)
MOST_NEW_TOKENS = 8192
"""Most tokens of a generation: 45 answers of GSM8K take 5,000 to 6,000, over the original's limit of 4,096."""
SETS = {name: SOURCES[f"longgenbench_{name}"] for name in ("gsm8k", "mmlu", "csqa")}
_TEXTS = read_yaml(Path(__file__).with_suffix(".yaml"))
_MMLU_DEMOS = ("LongGenBench_MMLU_prompt.json", "LongGenBench_MMLU_prompt/LongGenBench_prompt.json")
LETTERS = "ABCDE"
_GOLD = re.compile(r"-?[\d,]*\.?\d+")


QuestionAnswer = tuple[str, str]
"""A question as it stands in a prompt, and its answer: worked, of an example, else a number's digits or a letter."""


@dataclass(frozen=True, slots=True)
class Group:
    """The questions of one prompt, and the worked examples that stand before them.

    ``subject`` is MMLU's, whose questions and answers are paired by row; the released construction, which splits the
    joined text at blank lines, pairs some with other questions' answers.
    """

    demos: tuple[QuestionAnswer, ...]
    questions: tuple[QuestionAnswer, ...]
    subject: str | None = None


class LongGenBench(ReasoningTask):
    """``size`` questions in one generation, marked one by one by the number that each answer carries.

    Questions stand in the data's order. GSM8K and CommonsenseQA give consecutive groups from the first row on; MMLU
    gives the first ``size`` questions of each subject but five of long passages, fewer subjects being a random part.
    All questions count: one without an answer is wrong. ``parts`` are the marks in order of the questions.

    ``measures``: ``answered``, the share with an answer that can be read; ``original_right`` of ``original_counted`` by
    LongGenBench's own scorer, which leaves missing answers out; ``scope_accuracy`` by SCOPE's.

    Args:
        source: ``gsm8k``, ``mmlu`` or ``csqa``.
        size: questions of a prompt.
        data: ``longgenbench`` is a folder or ``hub`` (``read_groups``).

    Deviations: the instruction is in this project's words and in the user's turn; MMLU's options are set apart by
    spaces, as in its examples; up to 8,192 tokens are generated.
    """

    version = 2

    def __init__(self, source: str, size: int, data: Data):
        super().__init__(data, 1, MOST_NEW_TOKENS)
        self.takes_first = source != "mmlu"
        self.source = source
        self.size = size

    def problems(self) -> list[tuple[str, Group]]:
        """Return the prompt of every group, and the group."""
        made = []
        for group in read_groups(self.data.get("longgenbench"), self.source, self.size):
            subject = f" The questions are multiple choice, about {group.subject}." if group.subject else ""
            made.append((f"{_TEXTS['instruction']}{subject}\n\n{questions_text(group)}", group))
        return made

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the share of questions answered right, and a mark for each."""
        group: Group = sample.meta
        golds = tuple(gold for _, gold in group.questions)
        marks = marks_by_number(completion, golds, len(group.demos) + 1)
        original, scope = original_marks(completion, golds), scope_marks(completion, golds)
        total = len(golds)
        measures = {
            "answered": sum(mark is not None for mark in marks) / total,
            "original_right": float(sum(original)),
            "original_counted": float(len(original)),
            "scope_accuracy": sum(scope) / total,
        }
        parts = tuple(float(bool(mark)) for mark in marks)
        return Score(sum(parts) / total, parts, measures)


def questions_text(group: Group) -> str:
    """Return examples and questions as the benchmark sets them: all questions, then all answers, then what is asked."""
    demos = [f"Question_{number}: \n{question}" for number, (question, _) in enumerate(group.demos, 1)]
    demos += [f"Answer_{number}:\n{answer}" for number, (_, answer) in enumerate(group.demos, 1)]
    numbered = enumerate(group.questions, len(group.demos) + 1)
    asked = "".join(f"Question_{number}:\n{question}\n" for number, (question, _) in numbered)
    examples = "\n\n".join(demos)
    return f"Examples: \n{examples}\n\nFollowing Question: \n{asked}\n"


def read_groups(source: Path | None, name: str, size: int) -> list[Group]:
    """Return every whole group of ``size`` questions: consecutive ones of GSM8K and CSQA, each MMLU subject's first.

    Args:
        source: a folder with ``gsm8k/test.jsonl``, ``commonsense_qa/dev_rand_split.jsonl``, and MMLU's csv files and
            examples at any depth; or ``hub``, which has the first two.
        name: ``gsm8k``, ``mmlu`` or ``csqa``.
        size: questions of a group.

    Raises:
        DataUnavailableError: the data is not here or cannot be read; the message says how to fetch it.
    """
    data = SETS[name]
    if name == "mmlu":
        return _mmlu(data, source, size)
    questions = [_gsm8k(row) if name == "gsm8k" else _csqa(row) for row in reader.read_rows(data, source)]
    if len(questions) < size:
        raise data.unavailable(f"{name} in {source} has {len(questions)} questions, not {size}")
    starts = range(0, len(questions) - size + 1, size)
    demos = tuple((demo["question"], demo["answer"]) for demo in _TEXTS[name])
    return [Group(demos, tuple(questions[start : start + size])) for start in starts]


def _gsm8k(row: Row) -> QuestionAnswer:
    gold = row.text("answer").rpartition("####")[2].strip()
    if _GOLD.fullmatch(gold) is None:
        raise row.fault(f"has no number after '####' in 'answer', but {gold[:60]!r}")
    return row.text("question", blank=False), gold


def _csqa(row: Row) -> QuestionAnswer:
    """Read a row of the original release, or of the hub, which has it flattened."""
    with row.data.reading(f"{row.where} is no question of CommonsenseQA"):
        asked, gold = row.values["question"], row.values["answerKey"]
        if isinstance(asked, str):
            stem, flat = asked, row.values["choices"]
            choices = list(zip(flat["label"], flat["text"], strict=True))
        else:
            stem, choices = asked["stem"], [(choice["label"], choice["text"]) for choice in asked["choices"]]
        labels = [label for label, _ in choices]
        if labels != list(LETTERS[: len(choices)]) or gold not in labels:
            raise ValueError(f"choices {labels} and {gold!r} as 'answerKey'; letters from A to E are expected")
        options = (f"({label}) {reader.as_text(text)}" for label, text in choices)
        return f"{reader.as_text(stem, blank=False)}\n{' '.join(options)}\n", gold


def _mmlu(data: DataSet, source: Path | None, size: int) -> list[Group]:
    place = data.place(source)
    demos = next((file for name in _MMLU_DEMOS for file in sorted(place.rglob(name))), None)
    files = {file.name.removesuffix("_test.csv"): file for file in sorted(place.rglob("*_test.csv"))}
    if demos is None or not files:
        raise data.unavailable(f"{source} holds no {'*_test.csv of MMLU' if demos else _MMLU_DEMOS[0]}")
    examples = reader.read_json(data, demos)
    if not isinstance(examples, dict) or not all(isinstance(text, str) for text in examples.values()):
        raise data.unavailable(f"{demos} cannot be read: an object of texts, one a subject, is expected")
    groups = []
    for subject in sorted(set(files) & set(examples) - set(_TEXTS["dropped"])):
        rows = reader.csv_rows(data, files[subject], ("question", *LETTERS[:4], "answer"))[:size]
        group = _mmlu_group(subject, rows, examples[subject])
        if len(rows) == size:
            groups.append(group)
    if not groups:
        raise data.unavailable(f"{source} has no subject with {size} questions and worked examples")
    return groups


def _mmlu_group(subject: str, rows: list[Row], examples: str) -> Group:
    questions = []
    for row in rows:
        options = " ".join(f"({letter}) {row.text(letter)}" for letter in LETTERS[:4])
        gold = row.value("answer", "a letter from A to D", row.values["answer"] in tuple(LETTERS[:4]))
        questions.append((f"{row.text('question').strip()}\n{options}", gold))
    pairs = (example.partition("\nA: ") for example in examples.split("\n\nQ: ")[1:])
    demos = tuple((question, answer) for question, _, answer in pairs)
    return Group(demos, tuple(questions), subject.replace("_", " "))


SUITES: Mapping[str, Suite] = {
    "longgenbench": Suite(
        {f"longgenbench_{source}_{size}": partial(LongGenBench, source, size) for source in SETS for size in SIZES},
        data=("longgenbench",),
    )
}
