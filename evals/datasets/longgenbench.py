"""LongGenBench's groups of questions for one generation: GSM8K, MMLU and CommonsenseQA, rebuilt from their rows.

Source: Liu et al. 2024 (LongGenBench, arXiv 2410.04199); github Dominic789654/LongGenBench for GSM8K and MMLU, github
Linking-ai/SCOPE for CommonsenseQA.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from longdecode.engine.errors import DataUnavailableError
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
    rows = read_rows(place, source)
    try:
        questions = [_gsm8k(row) if name == "gsm8k" else _csqa(row) for row in rows]
    except (KeyError, TypeError) as error:
        raise unavailable(place, f"a row of {name} in {source} lacks {error}") from error
    if len(questions) < size:
        raise unavailable(place, f"{name} in {source} has {len(questions)} questions, not {size}")
    starts = range(0, len(questions) - size + 1, size)
    return [Group(_demos(name), tuple(questions[start : start + size])) for start in starts]


@functools.cache
def _demos(name: str) -> tuple[tuple[str, str], ...]:
    text = Path(__file__).with_name("longgenbench_demos.yaml").read_text(encoding="utf-8")
    return tuple((demo["question"], demo["answer"]) for demo in yaml.safe_load(text)[name])


def _gsm8k(row: Mapping[str, str]) -> Question:
    return Question(row["question"], row["answer"].rpartition("####")[2].strip())


def _csqa(row: Mapping) -> Question:
    """Read a row of the original release, or of the hub, which has it flattened."""
    asked = row["question"]
    if isinstance(asked, str):
        stem, choices = asked, dict(zip(row["choices"]["label"], row["choices"]["text"], strict=True))
    else:
        stem, choices = asked["stem"], {choice["label"]: choice["text"] for choice in asked["choices"]}
    options = " ".join(f"({label}) {text}" for label, text in choices.items())
    return Question(f"{stem}\n{options}\n", row["answerKey"])


def _mmlu(source: Path | None, size: int) -> list[Group]:
    if source is None or (str(source) == FROM_HUB and not source.is_dir()):
        raise _no_mmlu("data.longgenbench names no folder, and MMLU's worked examples are in no repository of the hub")
    demos = next((file for name in _MMLU_DEMOS for file in sorted(source.rglob(name))), None)
    files = {file.name.removesuffix("_test.csv"): file for file in sorted(source.rglob("*_test.csv"))}
    if demos is None or not files:
        raise _no_mmlu(f"{source} holds no {'*_test.csv of MMLU' if demos else _MMLU_DEMOS[0]}")
    groups = []
    try:
        examples: dict[str, str] = dict(json.loads(demos.read_text(encoding="utf-8")))
        for subject in sorted(set(files) & set(examples) - DROPPED):
            with files[subject].open(encoding="utf-8", newline="") as handle:
                rows = list(csv.reader(handle))[:size]
            if len(rows) == size:
                groups.append(_mmlu_group(subject, rows, examples[subject]))
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise _no_mmlu(f"{source} cannot be read: {error}") from error
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
