"""Figures 1 and 3 of TokenSwift's page: every number drawn is a text's or print's, and without texts nothing is."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from longdecode.evals.records import Record
from longdecode.evals.storage import write_records
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers.blocks import Picture
from longdecode.reporting.papers.registry import load_paper
from longdecode.reporting.papers.tokenswift.curves import minutes_drawn, ngrams_drawn

MARKS = (20_480, 40_960)
EACH = {"full": 1.0, "tokenswift": 3.0, "tokenswift_k0": 2.0}
"""Tokens a step."""


def text(lychee_run: ModuleType, label: str, ms: float) -> Record:
    measures: dict[str, float] = {"tokens": MARKS[-1], "depth": 0 if label == "full" else 4}
    for mark in MARKS:
        steps = mark / EACH[label]
        measures |= {f"at_{mark}_tokens": mark + 1, f"at_{mark}_steps": steps, f"at_{mark}_ms": mark * ms,
                     f"at_{mark}_ngram_tokens": 2 * steps if label == "tokenswift" else 0}  # fmt: skip
    return Record(
        profile="swift", model="tiny", label=label, method=label.removesuffix("_k0"), params={}, suite="generation",
        task="minp", task_version=1, metric="tokens_per_step", unit="tokens", higher_is_better=True, data_source="real",
        budget="1.0", budget_tokens=4096, context=4096, batch=1, seed=0, sample_index=0, status="ok",
        score=EACH[label], measures=measures, provenance=lychee_run.PROVENANCE,
    )  # fmt: skip


@pytest.fixture
def inputs(tmp_path: Path) -> Any:
    paper = load_paper("tokenswift")
    return SimpleNamespace(
        folder=tmp_path, words=lambda part: paper.words[part], published=paper.published,
        writer=FigureWriter(tmp_path / "pages", {}),
    )  # fmt: skip


def drawn(blocks: list[Any], folder: Path) -> dict[tuple[str, str, int], float]:
    (picture,) = blocks
    assert isinstance(picture, Picture)
    data = pd.read_csv(folder / "pages" / picture.figure.data)
    assert (folder / "pages" / picture.figure.wide).is_file()
    return {(row.panel, row.line, int(row.tokens)): row.value for row in data.itertuples()}


def test_figures_1_and_3_draw_print_beside_the_texts(tmp_path: Path, lychee_run: ModuleType, inputs: Any) -> None:
    texts = [text(lychee_run, label, ms) for label, ms in (("full", 3.0), ("tokenswift", 2.0), ("tokenswift_k0", 6.0))]
    write_records(tmp_path / "generation" / "long.parquet", texts, Record)
    minutes = drawn(minutes_drawn(inputs), tmp_path)
    assert minutes["print", "Full", 20_480] == 19 and minutes["print", "TokenSwift", 40_960] == 22
    assert minutes["here", "Full", 20_480] == pytest.approx(20_480 * 3 / 60_000, rel=1e-4)
    assert minutes["here", "TokenSwift", 40_960] == pytest.approx(40_960 * 2 / 60_000, rel=1e-4)
    assert ("here", "Full", 102_400) not in minutes, "no text is so long"
    curves = drawn(ngrams_drawn(inputs), tmp_path)
    assert curves["alpha", "tokenswift", 20_480] == pytest.approx(0.5, rel=1e-3)
    assert curves["beta", "tokenswift", 20_480] == pytest.approx(0.5)
    assert curves["speedup", "tokenswift_k0", 40_960] == pytest.approx(0.5, rel=1e-3)
    assert (
        curves["beta", "tokenswift print", 102_400] == 0.76 and curves["alpha", "tokenswift_k0 print", 102_400] == 0.4
    )


def test_without_texts_nothing_is_drawn(inputs: Any) -> None:
    assert minutes_drawn(inputs) == [] and ngrams_drawn(inputs) == []
