"""Speedups over books, from texts that a tiny model wrote: numbers as its records have."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import t as student

from longdecode.evals.generation import job as jobs
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.storage import read_records
from longdecode.reporting.papers.blocks import Cells, Prose
from longdecode.reporting.papers.registry import load_paper
from longdecode.reporting.papers.tokenswift.books import over_books

PROMPT, TOKENS, BUDGET, BOOKS = 128, 64, 48, 2
RUN = {
    "model": "tiny", "prompts": [PROMPT], "tokens": TOKENS, "samplers": ["greedy"], "labels": ["ngram"],
    "drafters": ["streaming", "h2o"], "draft_tokens": [2, 4], "branches": [1, 2], "source": "narrative",
    "budgets": [BUDGET], "mark": TOKENS, "books": BOOKS,
}  # fmt: skip
SHAPES = ("2", "4", "2x2", "4x2")


@pytest.fixture(scope="module")
def config(byte_checkpoint: Path) -> dict[str, Any]:
    return {
        "profile": "tiny", "device": "cpu", "seed": 5, "models": {"tiny": {"path": str(byte_checkpoint)}},
        "methods": {"full": {}, "ngram": {}, "streaming": {}, "h2o": {}}, "budgets": [BUDGET],
        "suites": {"mini_recall": {"contexts": [256], "samples": 2}},
        "generation": {"samplers": {"greedy": {}}, "runs": {"matrix": RUN}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("matrix")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.Gate, "refusal", lambda *_: None)
        jobs.write_texts(build_run_config(config, "test"), "matrix", made / "generation" / "matrix.parquet")
    return made


@pytest.fixture(scope="module")
def speedups(folder: Path) -> dict[str, list[float]]:
    """Times Full's speed by label, a number a book, taken from the records alone."""
    records = [r for r in read_records(folder / "generation" / "matrix.parquet", Record) if r.status == "ok"]
    pace = {(r.label, r.sample_index): r.measures["decode_ms"] / (r.measures["tokens"] - 1) for r in records}
    labels = dict.fromkeys(label for label, _ in pace)
    return {label: [pace["full", book] / pace[label, book] for book in range(BOOKS)] for label in labels}


def interval(each: list[float]) -> str:
    half = student.ppf(0.975, len(each) - 1) * stdev(each) / math.sqrt(len(each))
    low, high = (round(fmean(each) + side * half, 2) + 0.0 for side in (-1, 1))  # no bound of minus zero
    return f"[{low:.2f}, {high:.2f}]".replace("-", "\u2212")


def test_a_speedup_over_books_has_an_interval(folder: Path, speedups: dict[str, list[float]], tmp_path: Path) -> None:
    words = load_paper("tokenswift").words
    inputs: Any = SimpleNamespace(
        folder=folder, words=lambda part: words[part], missing=lambda *what: Prose(" ".join(what)),
        results=SimpleNamespace(confidence=0.95, models=()),
    )  # fmt: skip
    _, said, table = over_books(inputs)
    assert isinstance(said, Prose) and isinstance(table, Cells) and "Student's interval at 95" in table.caption
    each = speedups["ngram"]
    (row,) = table.rows
    assert list(row[:5]) == ["ngram", "greedy", f"{PROMPT}", f"{TOKENS}", f"{BOOKS}"]
    assert list(row[7:10]) == [f"{fmean(each):.2f}", interval(each), ", ".join(f"{one:.2f}" for one in each)]
    low, high = (float(part.replace("\u2212", "-")) for part in interval(each)[1:-1].split(", "))
    told = "faster" if low > 1 else "slower" if high < 1 else "not told apart from Full"
    assert f"`ngram` drawn by `greedy` {fmean(each):.2f} {interval(each)}, {told}." in said.text
    inputs.folder = tmp_path
    assert [block.text for block in over_books(inputs) if isinstance(block, Prose)][-1].endswith("books books")
