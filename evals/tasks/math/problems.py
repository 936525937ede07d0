"""The five sets of mathematics problems: from a local folder, or from the hub at a pinned revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longdecode.evals.datasets.data_file import Row
from longdecode.evals.datasets.rows import RowSet, read_rows
from longdecode.evals.scoring.math_answer import final_answer, integer_answer

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Text after the problem (the wording of QwQ's and DeepSeek-R1's evaluations)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its text without the instruction, the gold answer, and the tolerance stated with it."""

    text: str
    gold: str
    tolerance: str | None = None


# Revisions are those of the days when the sets were last changed there; None where it is not known to us.
SETS: Mapping[str, RowSet] = {
    "aime24": RowSet(
        "math", "aime24", ("test.jsonl", "qwq_aime24.jsonl"),
        "HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", "train",
    ),
    "aime25": RowSet(
        "math", "aime25", ("qwq_aime25.jsonl", "test.jsonl"),
        "math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "test",
    ),
    "math500": RowSet(
        "math", "math500", ("test.jsonl",),
        "HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "test",
    ),
    "olympiadbench": RowSet(
        "math", "olympiadbench", ("test.jsonl",),
        "Hothan/OlympiadBench", "91184b52131e7fc9455fef848035173aea8cc01a", "train", "OE_TO_maths_en_COMP",
    ),
    "minerva": RowSet("math", "minerva_math", ("test.jsonl",), "math-ai/minervamath", None, "test"),
    "gsm8k": RowSet("math", "gsm8k", ("test.jsonl",), "openai/gsm8k", None, "test", "main"),
}  # fmt: skip


def load_problems(name: str, data: Path | None) -> list[Problem]:
    """Return every problem of a set, in the set's own order.

    Args:
        name: a key of ``SETS``.
        data: a folder with one sub-folder a set, each holding its jsonl or a snapshot of its repository on the hub; or
            ``hub``; ``None`` where the configuration gives neither.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    return [_problem(row, name == "gsm8k") for row in read_rows(SETS[name], data)]


def _problem(row: Row, worked: bool) -> Problem:
    """Read one row of any of the formats that the sets are published in."""
    key = next((key for key in ("problem", "question", "prompt") if row.values.get(key)), None)
    if key is None:
        raise row.fault("lacks 'problem', 'question' or 'prompt'")
    context = row.optional_text("context")
    problem = row.text(key).removesuffix(INSTRUCTION)
    gold = _worked_gold(row) if worked else _gold(row)
    return Problem(f"{context}\n{problem}" if context else problem, gold, _tolerance(row))


def _worked_gold(row: Row) -> str:
    """Return the number that GSM8K puts after a worked solution and ``####``."""
    gold = row.text("answer").rpartition("####")[2].strip()
    if integer_answer(gold) is None:
        raise row.fault(f"has an answer that ends in no integer: {gold[-40:]!r}")
    return gold


def _gold(row: Row) -> str:
    if isinstance(row.values.get("final_answer"), list | tuple):
        return ", ".join(row.texts("final_answer"))
    for key in ("final_answer", "answer"):
        if row.values.get(key) is not None:
            return row.answer(key)
    boxed = final_answer(row.optional_text("solution") or "")
    if not boxed:
        raise row.fault("lacks 'answer', 'final_answer' or a boxed 'solution'")
    return boxed


def _tolerance(row: Row) -> str | None:
    stated = row.optional_text("error") or None
    try:
        parts = [float(part) for part in stated.split(",")] if stated else []
    except ValueError:
        parts = [-1.0]
    if not all(0 <= part < float("inf") for part in parts):
        raise row.fault(f"has {stated!r} as 'error'; numbers from 0, separated by commas, are expected")
    return stated
