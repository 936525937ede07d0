"""The five sets of mathematics problems: from a local folder, or from the hub at a pinned revision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.scoring.math_answer import final_answer

FROM_HUB = "hub"
"""Value of ``data.math`` to have every set fetched from its own repository of the hub."""
INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Text after the problem (the wording of QwQ's and DeepSeek-R1's evaluations)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its text without the instruction, the gold answer, and the tolerance stated with it."""

    text: str
    gold: str
    tolerance: str | None = None


@dataclass(frozen=True, slots=True)
class MathSet:
    """The place of a set: below the folder as one of ``files`` (or as a snapshot of the hub's), and on the hub."""

    folder: str
    files: tuple[str, ...]
    hub_id: str
    revision: str | None
    split: str
    config: str | None = None


# Revisions are those of the days when the sets were last changed there; None where it is not known to us.
SETS: Mapping[str, MathSet] = {
    "aime24": MathSet(
        "aime24", ("test.jsonl", "qwq_aime24.jsonl"),
        "HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", "train",
    ),
    "aime25": MathSet(
        "aime25", ("qwq_aime25.jsonl", "test.jsonl"),
        "math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "test",
    ),
    "math500": MathSet(
        "math500", ("test.jsonl",),
        "HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "test",
    ),
    "olympiadbench": MathSet(
        "olympiadbench", ("test.jsonl",),
        "Hothan/OlympiadBench", "91184b52131e7fc9455fef848035173aea8cc01a", "train", "OE_TO_maths_en_COMP",
    ),
    "minerva": MathSet("minerva_math", ("test.jsonl",), "math-ai/minervamath", None, "test"),
}  # fmt: skip


def load_problems(name: str, data: Path | None) -> list[Problem]:
    """Every problem of a set, in the set's own order.

    Args:
        name: a key of ``SETS``.
        data: a folder with one sub-folder a set, each holding its jsonl or a snapshot of its repository on the hub; or
            ``hub``; ``None`` where the configuration gives neither.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    place = SETS[name]
    if data is None:
        raise _unavailable(place, "the configuration's data.math names no folder")
    if str(data) == FROM_HUB and not data.is_dir():
        rows = _from_hub(place, place.hub_id, place.revision)
    else:
        rows = _from_folder(place, data / place.folder)
    try:
        return [_problem(row) for row in rows]
    except KeyError as error:
        raise _unavailable(place, f"a row of {name} in {data} has no {error}") from error


def _from_folder(place: MathSet, folder: Path) -> list[Mapping[str, Any]]:
    for file in (folder / name for name in place.files):
        if file.is_file():
            return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not folder.is_dir():
        raise _unavailable(place, f"there is no folder {folder}")
    return _from_hub(place, str(folder), None)


def _from_hub(place: MathSet, source: str, revision: str | None) -> list[Mapping[str, Any]]:
    """Rows by the datasets library: of the hub itself, or of a folder that is a snapshot of it."""
    import datasets  # seconds to import

    try:
        return list(datasets.load_dataset(source, place.config, split=place.split, revision=revision))
    except (OSError, ValueError) as error:
        raise _unavailable(place, f"{source} cannot be loaded: {error}") from error


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
        return str(row["answer"]).strip()
    return final_answer(str(row.get("solution") or ""))


def _unavailable(place: MathSet, why: str) -> DataUnavailableError:
    revision = f" --revision {place.revision}" if place.revision else ""
    fetch = f"hf download --repo-type dataset {place.hub_id}{revision} --local-dir math/{place.folder}"
    return DataUnavailableError(f"{why}; fetch the set with `{fetch}` and set data.math to math, or set it to hub")
