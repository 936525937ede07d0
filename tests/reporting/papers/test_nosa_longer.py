"""NOSA with more training: both lengths side by side, targets judged apart, trainings and overlaps of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting.papers.blocks import Block, Cells, Comparison, MissingResult, Prose, Targets
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.longer import longer
from longdecode.reporting.papers.nosa.quality_targets import (
    longer_near_full,
    longer_over_rivals,
    near_full,
    over_rivals,
)
from longdecode.reporting.results import ReportError

Make = Callable[..., PaperInputs]
WITH = ", with three times the training"


@pytest.fixture
def first(nosa_runs: ModuleType) -> Any:
    """A first run with InfLLM-V2's fork too, of which 12 of 24 prompts are right."""
    more = {("infllm2", "infllm2"): 12}
    return replace(nosa_runs.FIRST, right={**nosa_runs.FIRST.right, **more})


@pytest.fixture
def long(nosa_runs: ModuleType) -> Any:
    """Of 48 prompts NOSA's fork has 12 more than ShadowKV, three more than InfLLM-V2's and two fewer than full."""
    right = {
        ("full", "full"): 42, ("full", "shadowkv"): 28, ("infllm2", "infllm2"): 37, ("nosa", "nosa"): 40,
        ("dma", "dma"): 48,
    }  # fmt: skip
    loss = {("full", "full"): 3.0, ("full", "shadowkv"): 3.05, ("nosa", "nosa"): 3.02}
    return nosa_runs.Run("long", 2, 48, right, loss, steps=1800)


def blocks_of(inputs: PaperInputs, part: str = "longer") -> list[Block]:
    return next(list(section.blocks) for section in inputs.spec.sections(inputs) if section.anchor == part)


def rows_of(blocks: list[Block], start: str) -> Mapping[str, dict[str, str]]:
    """Return a table's rows by fork and method, each by heading."""
    table = next(block for block in blocks if isinstance(block, Cells) and block.caption.startswith(start))
    return {
        f"{row[0]} {row[1]}": dict(zip(table.heads, (cell.replace("\u2212", "-") for cell in row), strict=True))
        for row in table.rows
    }


def train(folder: Path, seconds: float, **settings: Any) -> None:
    """Write the end of a training of NOSA's fork; what it recorded outranks the configuration."""
    fork = folder / "forks" / "dense" / "nosa"
    fork.mkdir(parents=True)
    said = {
        "name": "nosa", "model": "dense", "attention": "nosa", "head": "ed_dma", "rows": 2, "length": 4096, "lr": 8e-4,
        **settings,
    }  # fmt: skip
    (fork / "run.json").write_text(json.dumps({"settings": said, "device": "H200"}), encoding="utf-8")
    last = {"step": said["steps"], "loss": 1.5, "prose": 3.1, "answers": 0.1, "sure": 0.9, "gamma": 0.9}
    pd.DataFrame([{**last, "seconds": seconds}]).to_csv(fork / "curve.csv", index=False)


def share(folder: Path, nosa: float, infllm2: float) -> None:
    """Write overlaps of three texts, which lie a hundredth to each side of NOSA's."""
    rows = [
        {"label": name, "method": name, "model": f"fork-{name}", "text": "books", "context": 4096, "budget": 1024,
         "document": text, "layer": layer, "head": 0, "steps": 1024, "worst": 0.74, "union": 0.4, "misses_64": 4.0,
         "gamma": value + (0.01 * (text - 1) if name == "nosa" else 0.0), "gamma_free": value - 0.1}
        for name, value in (("infllm2", infllm2), ("nosa", nosa))
        for text in range(3)
        for layer in range(2)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(folder / "locality.csv", index=False)


def test_both_trainings_stand_side_by_side(make_nosa: Make, first: Any, long: Any, nosa_runs: ModuleType) -> None:
    inputs = make_nosa(first, nosa_runs.FRESH, long)
    blocks = blocks_of(inputs)
    rows = rows_of(blocks, "ruler")
    assert list(rows) == ["full full attention", "infllm2 infllm2", "dma dma", "full shadowkv"]
    shadow = rows["full shadowkv"]
    assert shadow["1,800 steps, points"] == f"+{1200 / 48:.1f}" and shadow["Verdict, 1,800 steps"] == "above 0"
    # After 600 steps: on fresh prompts 60 and 40 of 96; InfLLM-V2's fork has 14 and 12 of 24 in the first run alone.
    assert shadow["600 steps, points"].startswith(f"+{2000 / 96:.1f} [") and "(" not in shadow["600 steps, points"]
    own = rows["infllm2 infllm2"]
    assert own["1,800 steps, points"] == f"+{300 / 48:.1f}"
    assert own["600 steps, points"].startswith(f"+{200 / 24:.1f} [")
    assert own["600 steps, points"].endswith("] (first run)")
    assert rows["full full attention"]["1,800 steps, points"] == f"-{200 / 48:.1f}"
    assert rows["full full attention"]["600 steps, points"].startswith("0.0 [")
    books = rows_of(blocks, "pg19_long")
    # Over eight books NOSA's fork has 0.007 nats more on average than at the first of them.
    assert books["full shadowkv"]["1,800 steps, nats a token"] == "-0.023"
    assert books["full shadowkv"]["600 steps, nats a token"].startswith("-0.093 [")
    plain = next(block for block in blocks if isinstance(block, Cells) and block.heads[:2] == ("Suite", "Task"))
    assert plain.heads[4:] == ("Prompts, 1,800 steps", "Score, 1,800 steps", "Prompts, 600 steps", "Score, 600 steps")
    scores = {
        tuple(row[2:4]): [text.replace("\u202f", " ") for text in row[4:]] for row in plain.rows if row[0] == "ruler"
    }
    assert scores["nosa", "nosa"] == ["48", f"{4000 / 48:.1f} %", "96", "62.5 %"]
    assert scores["infllm2", "infllm2"] == ["48", f"{3700 / 48:.1f} %", "24", "50.0 % (first run)"]


def test_without_fresh_prompts_the_first_run_stands_beside(make_nosa: Make, first: Any, long: Any) -> None:
    rows = rows_of(blocks_of(make_nosa(first, longer=long)), "ruler")
    before = rows["full shadowkv"]["600 steps, points"]
    assert before.startswith(f"+{400 / 24:.1f} [") and before.endswith("] (first run)")


def test_targets_are_judged_on_the_longer_run_alone(make_nosa: Make, first: Any, long: Any) -> None:
    """DMA's fork has every prompt right, and is no method without training."""
    inputs = make_nosa(first, longer=long)
    row, near = longer_over_rivals(inputs, "ruler"), longer_near_full(inputs, "ruler")
    assert row is not None and near is not None
    assert row.what == f"NOSA's fork minus each method without training, the closest: look-ups of ruler, shadowkv{WITH}"
    assert (row.level, row.words, row.measured) == ("met", "target met", f"+{1200 / 48:.1f} points")
    assert row.bounds == rows_of(blocks_of(inputs), "ruler")["full shadowkv"]["Interval"].replace("-", "\u2212")
    assert near.what == f"NOSA's fork minus the full fork with full attention: look-ups of ruler{WITH}"
    assert (near.level, near.measured.replace("\u2212", "-")) == ("recorded", f"-{200 / 48:.1f} points")
    books = longer_over_rivals(inputs, "pg19_long")
    assert books is not None and books.level == "met" and books.what.endswith(f"loss on books, shadowkv{WITH}")
    behind = make_nosa(first, longer=replace(long, right={**long.right, ("full", "shadowkv"): 41}))
    row = longer_over_rivals(behind, "ruler")
    assert row is not None and (row.level, row.words) == ("missed", "missed")


def test_a_target_names_the_rivals_that_were_not_run_again(make_nosa: Make, first: Any, long: Any) -> None:
    right = {**first.right, ("full", "infllm2"): 2}
    row = longer_over_rivals(make_nosa(replace(first, right=right), longer=long), "ruler")
    assert row is not None and row.what.endswith(f"ruler, shadowkv{WITH} (not run: infllm2)")


def test_words_tell_what_training_cost_held_out_prose(make_nosa: Make, first: Any, long: Any) -> None:
    inputs = make_nosa(first, longer=long)
    assert inputs.longer is not None
    for folder, loss in ((inputs.folder, 3.15), (inputs.longer.folder, 3.2816)):
        (fork := folder / "forks/dense/full").mkdir(parents=True)
        said = {
            "name": "full",
            "model": "dense",
            "attention": "full",
            "head": "",
            "rows": 2,
            "length": 4096,
            "lr": 8e-4,
        }
        (fork / "run.json").write_text(json.dumps({"settings": said, "device": "H200"}), encoding="utf-8")
        last = {"step": 600, "loss": 1.5, "prose": loss, "answers": 0.1, "sure": 0.9, "gamma": 0.9, "seconds": 1.0}
        pd.DataFrame([last]).to_csv(fork / "curve.csv", index=False)
    about = blocks_of(inputs)[0]
    assert isinstance(about, Prose) and "ended at 3.282 nats a token in place of 3.150" in about.text


def test_other_rows_stay_and_those_of_longer_training_need_it(make_nosa: Make, first: Any, long: Any) -> None:
    inputs = make_nosa(first, longer=long)
    alone = replace(inputs, longer=None)
    rows, before = (
        next(block.rows for block in blocks_of(each, "targets") if isinstance(block, Targets))
        for each in (inputs, alone)
    )
    assert list(rows[: len(before)]) == list(before) and not any(WITH in row.what for row in before)
    assert [row.what.removesuffix(WITH).split(": ")[1] for row in rows[len(before) :]] == [
        "look-ups of mini_recall", "look-ups of ruler, shadowkv", "look-ups of mini_longgen", "loss on books, shadowkv",
        "look-ups of mini_recall", "look-ups of ruler", "look-ups of mini_longgen",
    ]  # fmt: skip
    assert longer_over_rivals(alone, "ruler") is None and longer_near_full(alone, "ruler") is None
    for judge in (over_rivals, near_full):
        assert judge(inputs, "ruler") == judge(alone, "ruler")


def test_words_say_what_differs(make_nosa: Make, first: Any, long: Any, nosa_runs: ModuleType) -> None:
    about = blocks_of(make_nosa(first, nosa_runs.FRESH, long))[0]
    assert isinstance(about, Prose)
    for text in (
        "profile `long`: 1,800 steps in place of 600 steps",
        # Two rows of 4,096 tokens a step.
        f"{1800 * 8192 / 1e6:.2f} million tokens a fork in place of {600 * 8192 / 1e6:.2f} million",
        "seed 2 in place of 0 (first run) and 1 (fresh prompts)", "`ruler` 48", "Nothing else of the recipe differs.",
        "judged apart",
    ):  # fmt: skip
        assert text in about.text
    assert "not trained for longer" not in about.text
    fewer = {cell: count for cell, count in long.right.items() if cell[0] != "dma"}
    about = blocks_of(make_nosa(first, longer=replace(long, right=fewer)))[0]
    assert isinstance(about, Prose) and about.text.endswith("Forks that were not trained for longer: dma.")


def test_what_a_training_recorded_outranks_the_configuration(make_nosa: Make, first: Any, long: Any) -> None:
    inputs = make_nosa(first, longer=long)
    assert inputs.longer is not None
    train(inputs.folder, 100, steps=600)
    train(inputs.longer.folder, 250, steps=1500, lr=4e-4)
    about, *others = blocks_of(inputs)
    assert isinstance(about, Prose) and "1,500 steps in place of 600 steps" in about.text
    assert "These settings of the recipe differ too:" in about.text and "lr" in about.text.split("differ too: ")[1]
    assert "Nothing else" not in about.text
    ends = next(block for block in others if isinstance(block, Cells) and "end of training" in block.caption)
    (row,) = ends.rows
    assert row[:6] == ["nosa", "dense", "nosa", "ed_dma", f"{1500 * 8192 / 1e6:.2f} M", "0.0004"]
    judged = longer_over_rivals(inputs, "ruler")
    assert judged is not None and judged.what.endswith(", with 2.5 times the training")


def test_overlaps_of_both_runs_stand_side_by_side(make_nosa: Make, first: Any, long: Any) -> None:
    inputs = make_nosa(first, longer=long)
    assert inputs.longer is not None
    gaps = [block.command for block in blocks_of(inputs) if isinstance(block, MissingResult)]
    assert "snakemake --cores 8 nosa_locality --config profile=nosa-long" in gaps
    share(inputs.longer.folder, nosa=0.9, infllm2=0.75)
    alone = blocks_of(inputs)[-1]
    assert isinstance(alone, Cells) and [row[3] for row in alone.rows] == ["–"] * 3
    share(inputs.folder, nosa=0.88, infllm2=0.77)
    table = blocks_of(inputs)[-1]
    assert isinstance(table, Cells) and table.heads[1::2] == ("1,800 steps", "600 steps")
    assert [(row[1], row[3]) for row in table.rows] == [("75.0", "77.0"), ("90.0", "88.0"), ("+15.0", "+11.0")]
    # By text 14, 15 and 16 points.
    low, high = (float(side) for side in table.rows[2][2].strip("[]").split(", "))
    assert 14 <= low < 15 < high <= 16


def test_tasks_of_both_forks_make_up_the_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nosa_runs: ModuleType
) -> None:
    """On the committed records, the first run in the longer one's place: InfLLM-V2 is there on its fork and on full."""
    monkeypatch.chdir(nosa_runs.ROOT)
    inputs = nosa_runs.committed(tmp_path)
    blocks = longer(replace(inputs, longer=replace(inputs, fresh=None)))
    (tasks,) = [block for block in blocks if isinstance(block, Comparison)]
    shown = {tuple(row.of): float(row.measured.replace("\u2212", "-")) for row in tasks.rows}
    whole = next(block for block in blocks if isinstance(block, Cells) and block.caption.startswith("mini_recall"))
    rows = {(row[0], row[1]): row for row in whole.rows}
    for fork, method in (("infllm2", "infllm2, its own fork"), ("full", "infllm2")):
        parts = [shown[f"mini_recall_{task}", method] for task in ("multikey", "two_hop")]
        gap = float(rows[fork, "infllm2"][3].replace("\u2212", "-"))
        assert sum(parts) / 2 == pytest.approx(gap, abs=0.11) and parts[0] != parts[1]
    # Of json_kv the full fork answers too little for any difference: it has no table.
    assert not any(isinstance(block, Cells) and (not block.rows or "json_kv" in block.caption) for block in blocks)
    # What was not run again is the first run's, which here is this run.
    own = rows["infllm2", "infllm2"]
    assert own[5] == f"{own[3]} {own[4]} (first run)"
    assert not rows["full", "infllm2"][5].endswith("(first run)")


def test_without_a_longer_run_the_part_names_the_command(make_nosa: Make, first: Any) -> None:
    (gap,) = [block for block in blocks_of(make_nosa(first)) if isinstance(block, MissingResult)]
    assert gap.command == "snakemake --cores 8 all --config profile=nosa-long"


def test_folders_without_results_or_without_the_fork_are_errors(
    tmp_path: Path, lychee_run: ModuleType, nosa_runs: ModuleType, make_nosa: Make, first: Any, long: Any
) -> None:
    nothing = str(tmp_path / "nothing")
    folder = nosa_runs.write(tmp_path / "first", first, lychee_run.PROVENANCE, longer_from=nothing)
    with pytest.raises(ReportError, match=r"longer_from: .*nothing holds no results"):
        nosa_runs.page_inputs(folder)
    bare = {cell: count for cell, count in long.right.items() if cell[0] != "nosa"}
    with pytest.raises(ReportError, match="no model of the run is a fork with NOSA"):
        longer(make_nosa(first, longer=replace(long, right=bare, loss={})))
