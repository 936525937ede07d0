"""Read the six sets of mathematics problems: from a local folder, or from the hub at a pinned revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.evals.datasets.rows import RowSet, read_rows, unavailable
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
    rows = read_rows(SETS[name], data)
    try:
        problems = [_problem(row) for row in rows]
    except KeyError as error:
        raise unavailable(SETS[name], f"a row of {name} in {data} has no {error}") from error
    if name == "gsm8k" and (odd := [problem.gold for problem in problems if integer_answer(problem.gold) is None]):
        raise unavailable(SETS[name], f"{name} in {data} has an answer that is no integer: {odd[0][-40:]!r}")
    return problems


def _problem(row: Mapping[str, Any]) -> Problem:
    """One row of any of the formats that the sets are published in."""
    text = next((row[key] for key in ("problem", "question", "prompt") if row.get(key)), None)
    if text is None:
        raise KeyError("problem, question or prompt")
    context = row.get("context")
    gold = _gold(row)
    if not gold:
        raise KeyError("answer, final_answer or boxed solution")
    problem = str(text).removesuffix(INSTRUCTION)
    return Problem(f"{context}\n{problem}" if context else problem, gold, row.get("error") or None)


def _gold(row: Mapping[str, Any]) -> str | None:
    final = row.get("final_answer")
    if final is not None:
        return final if isinstance(final, str) else ", ".join(map(str, final))
    if row.get("answer") is not None:
        return str(row["answer"]).rpartition("####")[2].strip()  # GSM8K puts its number after a worked solution
    return final_answer(str(row.get("solution") or ""))
