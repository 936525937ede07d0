"""Time against rows and the tree that pays best, from records as jobs write them: numbers by hand, old beside new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from longdecode.evals import manifest
from longdecode.evals.comparable import SettingsError
from longdecode.evals.plan import config_path
from longdecode.evals.records import Record, SpeedRecord, SpeedSample
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.settings import speed_settings
from longdecode.evals.storage import read_records, write_records
from longdecode.evals.throughput.summary import write_speed_summary
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers.blocks import Block, Cells, Listing, MissingResult, Picture, Prose
from longdecode.reporting.papers.registry import load_paper
from longdecode.reporting.papers.tokenswift.rows import rows
from longdecode.reporting.papers.tokenswift.steps import steps
from longdecode.reporting.speed.measured import load_speed

ROOT = Path(__file__).parents[3]
STEP_US = {32_768: 4000.0, 102_400: 6000.0}
SIZES = (2, 41, 121)
DRAFT, KEEP = 0.5, 0.01
TREES: dict[str, tuple[dict[str, Any], int, float]] = {
    "tokenswift": ({}, 101, 4.0),
    "tokenswift_k0": ({"ngrams": 0}, 41, 3.0),
    "tokenswift_1999": ({"ngrams": 0, "tree": "1,9,9,9"}, 821, 4.5),
    "tokenswift_faithful": ({"mode": "faithful"}, 101, 5.0),
}
"""Parameters, rows and tokens a step of each tree's text."""


def over(rows_of_pass: float, context: int) -> float:
    """Return a made-up pass over Full's step: rows cost more at the longer context."""
    return 1 + rows_of_pass / (250 if context == 32_768 else 50)


def timed(lychee_run: ModuleType, stage: str, context: int, times: float, **fields: Any) -> SpeedRecord:
    base = STEP_US[context]
    given: dict[str, Any] = {
        "subject": "full", "label": "full", "budget": "full", "budget_tokens": None, "params": {}, "reference": "full",
        "samples": [SpeedSample(us=times * us, reference_us=us) for us in (base + n for n in range(5))],
    }  # fmt: skip
    return SpeedRecord(
        profile="tokenswift", model="llama3-8b", bench="decode", weights="random", stage=stage, context=context,
        batch=1, seed=0, status="ok", provenance=lychee_run.PROVENANCE, **given | fields,
    )  # fmt: skip


def job(lychee_run: ModuleType, sizes: Sequence[int]) -> list[SpeedRecord]:
    """Return records of Full, of passes of some sizes, and of one speculative label."""
    swift = {"subject": "tokenswift", "label": "tokenswift_k0", "budget": "4096", "budget_tokens": 4096,
             "params": {"draft_tokens": 4, "heads": "random:0", "ngrams": 0}}  # fmt: skip
    found = []
    for context in STEP_US:
        found.append(timed(lychee_run, "step", context, 1.0))
        for size in sizes:
            params = {"rows": size, "mask": "tree"}
            found.append(timed(lychee_run, "forward_rows", context, over(size, context), params=params))
        parts = {"draft": DRAFT, "verify": over(41, context), "keep": KEEP}
        for stage, times in (parts | {"speculative_step": 1.02 * sum(parts.values())}).items():
            found.append(timed(lychee_run, stage, context, times, **swift))
    return found


def texts(lychee_run: ModuleType) -> list[Record]:
    found = []
    for label, (params, size, each) in TREES.items():
        measures = {"tokens": 20_480.0, "depth": 4.0, "rows": float(size), "at_20480_tokens": 20_481.0,
                    "at_20480_steps": 20_480 / each, "at_20480_ms": 1.0, "at_20480_ngram_tokens": 0.0}  # fmt: skip
        found.append(
            Record(
                profile="tokenswift", model="tiny", method="tokenswift", label=label, suite="generation", task="minp",
                params={"heads": "there.json"} | params, task_version=1, metric="tokens_per_step", unit="tokens",
                higher_is_better=True, data_source="real", budget="1.0", budget_tokens=4096, context=4096, batch=1,
                seed=0, sample_index=0, status="ok", score=each, measures=measures, provenance=lychee_run.PROVENANCE,
            )
        )  # fmt: skip
    return found


@pytest.fixture
def run() -> RunConfig:
    return load_run_config(config_path(ROOT, "tokenswift"))


def summed_up(folder: Path, run: RunConfig, records: list[SpeedRecord], settings: RunConfig | None = None) -> None:
    """Write a job's file under the settings of a run, and its tables."""
    path = folder / "speed" / "llama3-8b.parquet"
    write_records(path, records, SpeedRecord, None, speed_settings(settings or run, "llama3-8b"))
    manifest.seal(folder, [path])
    write_speed_summary([path], folder / "speed.csv", run)


def section(folder: Path, lychee_run: ModuleType) -> list[Block]:
    write_records(folder / "generation" / "trees.parquet", texts(lychee_run), Record)
    return rows(inputs_of(folder))


def inputs_of(folder: Path) -> Any:
    words = load_paper("tokenswift").words
    return SimpleNamespace(
        folder=folder, speed=load_speed(folder, ()), words=lambda part: words[part], timed=lambda model: model,
        missing=lambda what, command: MissingResult(what, words["commands"][command]),
        results=SimpleNamespace(confidence=0.95), writer=FigureWriter(folder / "pages", {}),
    )  # fmt: skip


def test_the_tree_that_pays_best_is_composed_of_acceptance_and_time(
    tmp_path: Path, run: RunConfig, lychee_run: ModuleType
) -> None:
    summed_up(tmp_path, run, job(lychee_run, SIZES))
    blocks = section(tmp_path, lychee_run)
    (picture,) = [block for block in blocks if isinstance(block, Picture)]
    drawn = pd.read_csv(tmp_path / "pages" / picture.figure.data)
    assert len(drawn) == 6 and sorted(drawn["over_full"]) == pytest.approx(
        sorted(over(size, context) for size in SIZES for context in STEP_US), rel=1e-4
    )
    by_rows, trees = [block for block in blocks if isinstance(block, Cells)]
    assert [row[0] for row in by_rows.rows] == ["1, a step of Full", "2", "41", "121"]
    assert list(by_rows.heads[1:4]) == ["32K: ms", "32K: over Full's step", "Interval"]
    assert list(by_rows.rows[2][1:]) == ["4.66", "1.164", "[1.164, 1.164]", "10.92", "1.820", "[1.820, 1.820]"]
    composed = {
        (label, context): TREES[label][2] / (DRAFT + over(TREES[label][1], context) + KEEP)
        for label in ("tokenswift", "tokenswift_k0") for context in STEP_US
    }  # fmt: skip
    assert composed["tokenswift", 32_768] > composed["tokenswift_k0", 32_768]
    assert composed["tokenswift", 102_400] < composed["tokenswift_k0", 102_400]
    shown = {row[0]: (row[7], row[9]) for row in trees.rows}
    assert shown == {
        label: tuple(f"{composed[label, context]:.2f}" for context in STEP_US)
        for label in ("tokenswift_k0", "tokenswift")
    }
    assert list(trees.rows[1][:6]) == ["tokenswift", "1,3,3,3", "20", "101", "4.00", "1 prompt"]
    best, out = [block for block in blocks if isinstance(block, Listing)]
    assert best.items[0] == "32K: `tokenswift`, 101 rows, 2.09 = 4.00 / (0.50 + 1.40 + 0.01)"
    assert best.items[1] == "100K: `tokenswift_k0`, 41 rows, 1.29 = 3.00 / (0.50 + 1.82 + 0.01)"
    assert list(out.items) == ["`tokenswift_1999`: 821 rows, where passes of 2 to 121 were timed."]
    said = [block.text for block in blocks if isinstance(block, Prose)]
    assert any("Composed, not measured end to end: speedup = tokens a step / (draft + pass + keep)" in t for t in said)
    assert any("off by 2.0\u202f% at most" in text and "(2 of 4)" in text for text in said)


@pytest.mark.parametrize("sizes", [(), (41,)])
def test_without_several_sizes_the_section_says_how_to_time_them(
    tmp_path: Path, run: RunConfig, lychee_run: ModuleType, sizes: Sequence[int]
) -> None:
    summed_up(tmp_path, run, job(lychee_run, sizes))
    said, hole = section(tmp_path, lychee_run)
    assert isinstance(said, Prose) and isinstance(hole, MissingResult) and "forward_rows" in hole.command


def test_old_and_new_records_in_one_file_are_one_table(
    tmp_path: Path, run: RunConfig, lychee_run: ModuleType, no_drawing: None
) -> None:
    """A file of old settings is refused; its records, one a cell, stand beside new ones under the present settings."""
    assert run.throughput is not None
    part = run.throughput.decode["llama3-8b"]
    before = replace(run, throughput=replace(run.throughput, decode={"llama3-8b": replace(part, forward_rows=41)}))
    old = job(lychee_run, (41,))
    with pytest.raises(SettingsError, match="made with job"):
        summed_up(tmp_path, run, old, before)
    path = tmp_path / "speed" / "llama3-8b.parquet"
    later = lychee_run.PROVENANCE.model_copy(update={"revision": "f" * 40})
    new = [r.model_copy(update={"provenance": later}) for r in job(lychee_run, SIZES) if r.subject == "full"]
    merged = {record.key: record for record in (*read_records(path, SpeedRecord), *new)}
    summed_up(tmp_path, run, list(merged.values()))
    table = pd.read_csv(tmp_path / "speed.csv")
    passes = table[(table["stage"] == "forward_rows") & (table["context"] == 32_768)]
    assert sorted(passes["op_sizes"]) == ["rows=121", "rows=2", "rows=41"] and set(passes["revision"]) == {"f" * 12}
    assert len(table[(table["stage"] == "step") & (table["context"] == 32_768)]) == 1
    assert set(table.loc[table["subject"] == "tokenswift", "revision"]) != {"f" * 12}
    growth = pd.read_csv(tmp_path / "growth.csv")
    fitted = growth[growth["stage"] == "forward_rows"]
    assert sorted(fitted["op_sizes"]) == ["rows=121", "rows=2", "rows=41"] and set(fitted["points"]) == {2}
    by_rows, trees = [block for block in section(tmp_path, lychee_run) if isinstance(block, Cells)]
    assert len(by_rows.rows) == 4 and len(trees.rows) == 2
    _, baselines = [block for block in steps(inputs_of(tmp_path)) if isinstance(block, Cells)]
    assert [row[1] for row in baselines.rows] == ["ours, in a CUDA graph"] * 2 + ["the paper's own loop, A100"]


def test_steps_under_a_sampler_are_shown_where_they_were_timed_else_the_command(tmp_path: Path) -> None:
    *_, hole = steps(inputs_of(tmp_path))
    assert isinstance(hole, MissingResult) and "longdecode.evals.sampled_steps" in hole.command
    row = {"model": "llama3-8b", "label": "tokenswift", "context": 102400, "rows": 101, "sampler": "minp",
           "sampled_us": 14960.4, "greedy_us": 13600.2, "ratio": 1.1, "low": 1.09, "high": 1.12, "n": 7,
           "disturbed": 1}  # fmt: skip
    plain = row | {"label": "full", "rows": 1, "sampled_us": 7124.0, "greedy_us": 6800.1}
    for timed, over in (([row], ["–", "–"]), ([plain, row], ["2.00", "2.10"])):
        pd.DataFrame(timed).to_csv(tmp_path / "sampled_steps.csv", index=False)
        *_, table = steps(inputs_of(tmp_path))
        assert isinstance(table, Cells)
        assert list(table.rows[-1]) == ["llama3-8b", "tokenswift", "101", "102,400", "minp", "13,600", "14,960",
                                        "1.100", "[1.090, 1.120]", "7 of 8", *over]  # fmt: skip
