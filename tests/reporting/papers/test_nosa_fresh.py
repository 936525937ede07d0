"""NOSA on fresh prompts: the page shows both runs side by side, and the fresh one decides a target where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from longdecode.evals import curves, summary
from longdecode.evals.records import Record
from longdecode.evals.storage import write_records, write_table
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.papers.blocks import Block, Cells, Comparison, MissingResult, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.fresh import fresh
from longdecode.reporting.papers.nosa.quality_targets import near_full, over_rivals
from longdecode.reporting.papers.registry import papers_of
from longdecode.reporting.results import ReportError, load_results

ROOT = Path(__file__).resolve().parents[3]

METHODS = ("full", "nosa", "dma", "shadowkv")
Labels = Mapping[tuple[str, str], float]
"""A number of each fork and label."""


@dataclass(frozen=True)
class Run:
    """A made-up run: by fork and label, prompts right (the first ones) and the loss on the first of eight books."""

    profile: str
    seed: int
    prompts: int
    right: Labels
    loss: Labels = field(default_factory=dict)


FIRST = Run(
    "first", 0, 24,
    {("full", "full"): 22, ("full", "shadowkv"): 10, ("nosa", "nosa"): 14, ("dma", "dma"): 1},
    {("full", "full"): 3.0, ("full", "shadowkv"): 3.02, ("nosa", "nosa"): 3.05},
)  # fmt: skip
"""Four prompts of 24 over ShadowKV, which cannot be told from none; 13 over DMA."""
FRESH = Run(
    "again", 1, 96, {("full", "full"): 60, ("full", "shadowkv"): 40, ("nosa", "nosa"): 60},
    {("full", "full"): 3.0, ("full", "shadowkv"): 3.2, ("nosa", "nosa"): 3.1},
)  # fmt: skip
"""20 prompts of 96 over ShadowKV, and as many as under full attention."""


def records(run: Run, provenance: Any) -> Iterator[Record]:
    base = Record(
        profile=run.profile, model="", method="", label="", params={}, suite="ruler", task="ruler_niah_multikey_2",
        task_version=1, metric="accuracy", unit="fraction", higher_is_better=True, data_source="generated",
        budget="full", budget_tokens=None, context=4096, batch=4, seed=run.seed, sample_index=0, status="ok", score=0.0,
        parts=[0.0], prompt_sha256="", provenance=provenance,
        measures={"kv_tokens_read": 1016.0, "kv_bytes_per_step": 1e6, "metadata_bytes_per_step": 0.0},
    )  # fmt: skip
    book = {
        "suite": "pg19_long", "task": "pg19_long_forced_1024", "metric": "loss_over_full", "unit": "nats/token",
        "higher_is_better": False, "data_source": "real", "score": 7.0, "parts": None,
    }  # fmt: skip
    for numbers, count in ((run.right, run.prompts), (run.loss, 8)):
        for (fork, label), value in numbers.items():
            mine: dict[str, Any] = {"model": f"fork-{fork}", "method": label, "label": label}
            mine |= {} if label == "full" else {"budget": "1024", "budget_tokens": 1024}
            for index in range(count):
                own: dict[str, Any] = {"sample_index": index, "prompt_sha256": f"{run.seed} {index}"}
                if numbers is run.right:
                    own |= {"score": float(index < value), "parts": [float(index < value)]}
                else:
                    # Books get harder, for NOSA's fork by a little more.
                    loss = value + index * (0.102 if label == "nosa" else 0.1)
                    own |= {**book, "measures": {**base.measures, "loss": loss}}
                yield base.model_copy(update=mine | own)


def write(folder: Path, run: Run, provenance: Any, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names = dict.fromkeys(fork for fork, _ in run.right)
    config = {
        "profile": run.profile, "seed": run.seed, "confidence": 0.95, "bootstrap_resamples": 200, "budgets": [1024],
        "models": {f"fork-{name}": {"path": f"results/{run.profile}/forks/dense/{name}/model"} for name in names},
        "methods": {label: {} for label in METHODS},
        "suites": {name: {"contexts": [4096], "samples": run.prompts} for name in ("ruler", "pg19_long")},
        "adaptation": {"defaults": {"model": "dense"}, "runs": {name: {"attention": name[:4]} for name in names}},
        **more,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    found = list(records(run, provenance))
    for model, label, suite in {(r.model, r.label, r.suite) for r in found}:
        mine = [r for r in found if (r.model, r.label, r.suite) == (model, label, suite)]
        write_records(folder / "records" / model / label / f"{suite}.parquet", mine, Record)
    write_table(folder / "summary.csv", summary.summarise(found, summary.Spread(0.95, 200, 0)))
    write_table(folder / "along_generation.parquet", curves.along_generation(found, 0.95))
    write_table(folder / "loss_by_position.parquet", curves.loss_by_position(found, 0.95))
    return folder


Make = Callable[[Run, Run | None], PaperInputs]


def page_inputs(folder: Path) -> PaperInputs:
    writer = FigureWriter(folder / "figures", looks(list(METHODS), list(METHODS), "full"))
    results = load_results(folder / "config.yaml", folder)
    found = papers_of(results, folder, writer, lambda model, suite: "", str, {"nosa": "nosa"})
    return next(paper.inputs for paper in found if paper.name == "nosa")


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory, lychee_run: ModuleType) -> Make:
    """Return what NOSA's page draws on, for a first run and a fresh one."""

    def made(first: Run, fresh: Run | None) -> PaperInputs:
        folder, more = tmp_path_factory.mktemp("nosa"), {}
        if fresh is not None:
            more["fresh_from"] = str(write(folder / "fresh", fresh, lychee_run.PROVENANCE))
        return page_inputs(write(folder / "first", first, lychee_run.PROVENANCE, **more))

    return made


def fresh_part(inputs: PaperInputs) -> list[Block]:
    return next(list(part.blocks) for part in inputs.spec.sections(inputs) if part.anchor == "fresh")


def test_a_target_that_the_first_run_could_not_tell_is_met_on_fresh_prompts(make: Make) -> None:
    inputs = make(FIRST, FRESH)
    first = over_rivals(replace(inputs, fresh=None), "ruler")
    assert (first.words, first.measured) == ("missed: cannot be told apart", f"+{400 / 24:.1f} points")
    assert "fresh" not in first.what and "first run" not in first.what
    row = over_rivals(inputs, "ruler")
    assert (row.level, row.words, row.measured) == ("met", "target met", f"+{2000 / 96:.1f} points")
    assert "look-ups of ruler on fresh prompts, shadowkv (first run: " in row.what
    assert f"{first.measured} {first.bounds} over shadowkv, missed: cannot be told apart)" in row.what
    books = over_rivals(inputs, "pg19_long")
    # 3.1 + 0.002 a book against 3.2, where the first run had 3.05 against 3.02.
    assert (books.level, books.measured.replace("\u2212", "-")) == ("met", "-0.093 nats")
    assert "on fresh prompts" in books.what and "first run: +0.037 nats" in books.what
    near = near_full(inputs, "ruler")
    assert (near.level, near.words, near.measured) == ("stretch", "stretch target met", "0.0 points")
    assert "on fresh prompts" in near.what and "stretch target missed)" in near.what


def test_a_target_that_fresh_prompts_refute_is_missed(make: Make) -> None:
    won = replace(FIRST, right={**FIRST.right, ("full", "shadowkv"): 2})
    inputs = make(won, replace(FRESH, right={**FRESH.right, ("full", "shadowkv"): 70, ("full", "full"): 90}))
    row = over_rivals(inputs, "ruler")
    assert (row.level, row.words) == ("missed", "missed") and row.what.endswith("over shadowkv, target met)")
    assert near_full(inputs, "ruler").level == "recorded"


def test_a_rival_that_was_not_run_again_counts_from_the_first_run(make: Make) -> None:
    """DMA's fork answers one of 24 more than NOSA's there: the target is missed, whatever fresh prompts say."""
    row = over_rivals(make(replace(FIRST, right={**FIRST.right, ("dma", "dma"): 15}), FRESH), "ruler")
    assert row.level == "missed" and ", dma in the first run (first run: " in row.what


def test_a_suite_that_was_not_run_again_is_judged_as_before(make: Make) -> None:
    inputs = make(FIRST, replace(FRESH, loss={}))
    assert over_rivals(inputs, "pg19_long") == over_rivals(replace(inputs, fresh=None), "pg19_long")
    assert "on fresh prompts" in over_rivals(inputs, "ruler").what
    no_full = {place: count for place, count in FRESH.right.items() if place != ("full", "full")}
    inputs = make(FIRST, replace(FRESH, right=no_full))
    assert near_full(inputs, "ruler") == near_full(replace(inputs, fresh=None), "ruler")


def test_both_runs_stand_side_by_side(make: Make) -> None:
    again = {("full_again", "full"): 20, ("full_again", "shadowkv"): 12}
    inputs = make(replace(FIRST, right={**FIRST.right, **again}), FRESH)
    about, *others = fresh_part(inputs)
    assert isinstance(about, Prose)
    assert "seed 1 in place of 0" in about.text and "`ruler` 96 (24 in the first run)" in about.text
    assert "not run again: dma." in about.text
    # The records are made up: no code of today has their hash.
    assert "Measured before" in "".join(block.text for block in others if isinstance(block, Prose))
    look_ups, books, plain = [block for block in others if isinstance(block, Cells)]
    quality = next(part for part in inputs.spec.sections(inputs) if part.anchor == "quality")
    first = next(b for b in quality.blocks if isinstance(b, Comparison) and b.heads[0] == "Than")
    before = {row.of[0]: f"{row.measured} {row.interval}" for row in first.rows if row.of[1] == "shadowkv"}
    assert before["full"].startswith(f"+{400 / 24:.1f} [") and before["full_again"].startswith(f"+{200 / 24:.1f} [")
    assert look_ups.heads[3:6] == ("Fresh prompts, points", "Interval", "First run, points")
    rows = {row[1]: row for row in look_ups.rows}
    assert list(rows) == ["full attention", "shadowkv"]
    shadow = rows["shadowkv"]
    assert shadow[3:5] == [f"+{2000 / 96:.1f}", over_rivals(inputs, "ruler").bounds]
    assert shadow[5] == f"full {before['full']}; full_again {before['full_again']}"
    assert shadow[6:] == ["above 0", "20 won, 0 lost, p <0.001"]
    assert rows["full attention"][3:5] == ["0.0", near_full(inputs, "ruler").bounds]
    assert books.heads[3] == "Fresh prompts, nats a token"
    differences = {row[1]: (row[3].replace("\u2212", "-"), row[5].split(" [")[0], row[6]) for row in books.rows}
    assert differences == {
        "full attention": ("+0.107", "+0.057", "more loss"), "shadowkv": ("-0.093", "+0.037", "less loss")
    }  # fmt: skip
    scores = {(row[0], row[2], row[3]): [text.replace("\u202f", " ") for text in row[4:]] for row in plain.rows}
    assert scores["ruler", "nosa", "nosa"] == ["96", "62.5 %", "24", f"{1400 / 24:.1f} %"]
    assert scores["ruler", "full", "full attention"] == ["96", "62.5 %", "24", f"{2200 / 24:.1f} %"]
    assert scores["pg19_long", "nosa", "nosa"] == ["8", "3.457 nats", "8", "3.407 nats"]


def test_tasks_of_a_suite_stand_apart_and_make_up_its_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the committed records: a lead over a suite may be that of one of its tasks."""
    monkeypatch.chdir(ROOT)
    results = load_results(Path("results/nosa/config.yaml"), Path("results/nosa"))
    writer = FigureWriter(tmp_path / "figures", looks(list(METHODS), list(METHODS), "full"))
    found = papers_of(results, Path("results/nosa"), writer, lambda model, suite: "", str, {"nosa": "nosa"})
    blocks = fresh(next(paper.inputs for paper in found if paper.name == "nosa"))
    (tasks,) = [block for block in blocks if isinstance(block, Comparison)]
    shown = {tuple(row.of): float(row.measured.replace("\u2212", "-")) for row in tasks.rows}
    whole = next(block for block in blocks if isinstance(block, Cells) and block.caption.startswith("mini_recall"))
    gap = next(float(row[3].replace("\u2212", "-")) for row in whole.rows if row[1] == "infllm2")
    parts = [shown[f"mini_recall_{task}", "infllm2"] for task in ("multikey", "two_hop")]
    assert sum(parts) / 2 == pytest.approx(gap, abs=0.11) and parts[0] != parts[1]


def test_without_a_fresh_run_the_part_names_the_command(make: Make) -> None:
    (gap,) = [block for block in fresh_part(make(FIRST, None)) if isinstance(block, MissingResult)]
    assert gap.command == "snakemake --cores 8 all --config profile=nosa-fresh"


def test_a_folder_without_results_is_an_error(tmp_path: Path, lychee_run: ModuleType) -> None:
    folder = write(tmp_path / "first", FIRST, lychee_run.PROVENANCE, fresh_from=str(tmp_path / "nothing"))
    with pytest.raises(ReportError, match=r"fresh_from: .*nothing holds no results"):
        page_inputs(folder)
