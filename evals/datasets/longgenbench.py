"""LongGenBench's groups of questions for one generation: GSM8K, MMLU and CommonsenseQA, rebuilt from their rows.

Source: Liu et al. 2024 (LongGenBench, arXiv 2410.04199); github Dominic789654/LongGenBench for GSM8K and MMLU, github
Linking-ai/SCOPE for CommonsenseQA.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.data_file import Row, csv_table, json_document
from longdecode.evals.datasets.rows import FROM_HUB, RowSet, read_rows, unavailable

GSM8K = RowSet("longgenbench", "gsm8k", ("test.jsonl",), "openai/gsm8k", None, "test", "main")
CSQA = RowSet(
    "longgenbench", "commonsense_qa", ("dev_rand_split.jsonl",), "tau/commonsense_qa", None, "validation"
)  # fmt: skip
DROPPED = frozenset(
    (
        "high_school_european_history", "high_school_us_history", "high_school_world_history", "professional_law",
        "security_studies",
    )
)  # fmt: skip
"""MMLU's subjects whose questions are passages: 9,000 tokens and more for 45. The paper drops five too, unnamed."""
MMLU_REVISION = "98458646ced747ca81a2d3023213a00a70cd7694"
MMLU_FETCH = (
    "git clone https://github.com/Dominic789654/LongGenBench longgenbench/mmlu && git -C longgenbench/mmlu checkout "
    f"{MMLU_REVISION}"
)
_MMLU_DEMOS = ("LongGenBench_MMLU_prompt.json", "LongGenBench_MMLU_prompt/LongGenBench_prompt.json")
LETTERS = "ABCDE"
_GOLD = re.compile(r"-?[\d,]*\.?\d+")


@dataclass(frozen=True, slots=True)
class Question:
    """One question as it stands in a prompt, and its gold answer: a number's digits, or a letter."""

    text: str
    gold: str


@dataclass(frozen=True, slots=True)
class Group:
    """The questions of one prompt, and the worked examples, question and answer, that stand before them.

    ``subject`` is MMLU's. ``misaligned_from`` is the index from which the released construction, which splits the
    joined text at blank lines, pairs questions with other questions' answers; ``None`` where it does not. Here they are
    paired by row.
    """

    demos: tuple[tuple[str, str], ...]
    questions: tuple[Question, ...]
    subject: str | None = None
    misaligned_from: int | None = None


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
    if name == "mmlu":
        return _mmlu(source, size)
    place = GSM8K if name == "gsm8k" else CSQA
    questions = [_gsm8k(row) if name == "gsm8k" else _csqa(row) for row in read_rows(place, source)]
    if len(questions) < size:
        raise unavailable(place, f"{name} in {source} has {len(questions)} questions, not {size}")
    starts = range(0, len(questions) - size + 1, size)
    return [Group(_demos(name), tuple(questions[start : start + size])) for start in starts]


@functools.cache
def _demos(name: str) -> tuple[tuple[str, str], ...]:
    text = Path(__file__).with_name("longgenbench_demos.yaml").read_text(encoding="utf-8")
    return tuple((demo["question"], demo["answer"]) for demo in yaml.safe_load(text)[name])


def _gsm8k(row: Row) -> Question:
    answer = row.text("answer")
    gold = answer.rpartition("####")[2].strip()
    if _GOLD.fullmatch(gold) is None:
        raise row.fault(f"has no number after '####' in 'answer', but {gold[:60]!r}")
    return Question(row.text("question"), gold)


def _csqa(row: Row) -> Question:
    """Read a row of the original release, or of the hub, which has it flattened."""
    if isinstance(row.value("question"), str):
        stem, options = row.text("question"), row.inner("choices")
        labels, texts = options.texts("label"), options.texts("text")
    else:
        asked = row.inner("question")
        choices = asked.value("choices")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise asked.fault("has 'choices' that are no list of objects")
        inner = [Row(choice, asked.where, asked.remedy) for choice in choices]
        stem = asked.text("stem")
        labels, texts = tuple(c.text("label") for c in inner), tuple(c.text("text") for c in inner)
    gold = row.text("answerKey")
    if labels != tuple(LETTERS[: len(texts)]) or gold not in labels:
        raise row.fault(
            f"has choices {', '.join(labels)} with {len(texts)} texts, and {gold!r} as 'answerKey'; letters from A to "
            "E, one a text, are expected"
        )
    listed = " ".join(f"({label}) {text}" for label, text in zip(labels, texts, strict=True))
    return Question(f"{stem}\n{listed}\n", gold)


def _mmlu(source: Path | None, size: int) -> list[Group]:
    if source is None or (str(source) == FROM_HUB and not source.is_dir()):
        raise _no_mmlu("data.longgenbench names no folder, and MMLU's worked examples are in no repository of the hub")
    demos = next((file for name in _MMLU_DEMOS for file in sorted(source.rglob(name))), None)
    files = {file.name.removesuffix("_test.csv"): file for file in sorted(source.rglob("*_test.csv"))}
    if demos is None or not files:
        raise _no_mmlu(f"{source} holds no {'*_test.csv of MMLU' if demos else _MMLU_DEMOS[0]}")
    groups = []
    examples = json_document(demos, _no_mmlu)
    if not isinstance(examples, dict) or not all(isinstance(text, str) for text in examples.values()):
        raise _no_mmlu(f"{demos} cannot be read: an object of texts, one a subject, is expected")
    for subject in sorted(set(files) & set(examples) - DROPPED):
        rows = csv_table(files[subject], _no_mmlu)[:size]
        for where, values in rows:
            if len(values) != 6 or values[-1] not in tuple(LETTERS[:4]):
                raise _no_mmlu(
                    f"{where} has {len(values)} fields, the last {values[-1]!r}; 6 are expected, the last A to D"
                )
        if len(rows) == size:
            groups.append(_mmlu_group(subject, [values for _, values in rows], examples[subject]))
    if not groups:
        raise _no_mmlu(f"{source} has no subject with {size} questions and worked examples")
    return groups


def _mmlu_group(subject: str, rows: list[list[str]], examples: str) -> Group:
    questions, misaligned = [], None
    for index, (stem, *choices, gold) in enumerate(rows):
        options = [f"({letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
        if misaligned is None and "\n\n" in f"{stem}\n{''.join(options)}":
            misaligned = index
        questions.append(Question(f"{stem.strip()}\n{' '.join(options)}", gold))
    pairs = (example.partition("\nA: ") for example in examples.split("\n\nQ: ")[1:])
    demos = tuple((question, answer) for question, _, answer in pairs)
    return Group(demos, tuple(questions), subject.replace("_", " "), misaligned)


def _no_mmlu(why: str) -> DataUnavailableError:
    return DataUnavailableError(f"{why}; fetch them with `{MMLU_FETCH}` and set data.longgenbench to longgenbench")
