"""NOSA on fresh prompts: the page shows both runs side by side, and the fresh one decides a target where it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from longdecode.reporting.papers.blocks import Block, Cells, Comparison, MissingResult, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.fresh import fresh
from longdecode.reporting.papers.nosa.quality_targets import near_full, over_rivals
from longdecode.reporting.results import ReportError

Make = Callable[..., PaperInputs]


def fresh_part(inputs: PaperInputs) -> list[Block]:
    return next(list(part.blocks) for part in inputs.spec.sections(inputs) if part.anchor == "fresh")


def test_a_target_that_the_first_run_could_not_tell_is_met_on_fresh_prompts(
    make_nosa: Make, nosa_runs: ModuleType
) -> None:
    inputs = make_nosa(nosa_runs.FIRST, nosa_runs.FRESH)
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


def test_a_target_that_fresh_prompts_refute_is_missed(make_nosa: Make, nosa_runs: ModuleType) -> None:
    won = replace(nosa_runs.FIRST, right={**nosa_runs.FIRST.right, ("full", "shadowkv"): 2})
    inputs = make_nosa(
        won, replace(nosa_runs.FRESH, right={**nosa_runs.FRESH.right, ("full", "shadowkv"): 70, ("full", "full"): 90})
    )
    row = over_rivals(inputs, "ruler")
    assert (row.level, row.words) == ("missed", "missed") and row.what.endswith("over shadowkv, target met)")
    assert near_full(inputs, "ruler").level == "recorded"


def test_a_rival_that_was_not_run_again_counts_from_the_first_run(make_nosa: Make, nosa_runs: ModuleType) -> None:
    """DMA's fork answers one of 24 more than NOSA's there: the target is missed, whatever fresh prompts say."""
    row = over_rivals(
        make_nosa(replace(nosa_runs.FIRST, right={**nosa_runs.FIRST.right, ("dma", "dma"): 15}), nosa_runs.FRESH),
        "ruler",
    )
    assert row.level == "missed" and ", dma in the first run (first run: " in row.what


def test_a_suite_that_was_not_run_again_is_judged_as_before(make_nosa: Make, nosa_runs: ModuleType) -> None:
    inputs = make_nosa(nosa_runs.FIRST, replace(nosa_runs.FRESH, loss={}))
    assert over_rivals(inputs, "pg19_long") == over_rivals(replace(inputs, fresh=None), "pg19_long")
    assert "on fresh prompts" in over_rivals(inputs, "ruler").what
    no_full = {place: count for place, count in nosa_runs.FRESH.right.items() if place != ("full", "full")}
    inputs = make_nosa(nosa_runs.FIRST, replace(nosa_runs.FRESH, right=no_full))
    assert near_full(inputs, "ruler") == near_full(replace(inputs, fresh=None), "ruler")


def test_both_runs_stand_side_by_side(make_nosa: Make, nosa_runs: ModuleType) -> None:
    again = {("full_again", "full"): 20, ("full_again", "shadowkv"): 12}
    inputs = make_nosa(replace(nosa_runs.FIRST, right={**nosa_runs.FIRST.right, **again}), nosa_runs.FRESH)
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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nosa_runs: ModuleType
) -> None:
    """On the committed records: a lead over a suite may be that of one of its tasks."""
    monkeypatch.chdir(nosa_runs.ROOT)
    blocks = fresh(nosa_runs.committed(tmp_path))
    (tasks,) = [block for block in blocks if isinstance(block, Comparison)]
    shown = {tuple(row.of): float(row.measured.replace("\u2212", "-")) for row in tasks.rows}
    whole = next(block for block in blocks if isinstance(block, Cells) and block.caption.startswith("mini_recall"))
    gap = next(float(row[3].replace("\u2212", "-")) for row in whole.rows if row[1] == "infllm2")
    parts = [shown[f"mini_recall_{task}", "infllm2"] for task in ("multikey", "two_hop")]
    assert sum(parts) / 2 == pytest.approx(gap, abs=0.11) and parts[0] != parts[1]


def test_without_a_fresh_run_the_part_names_the_command(make_nosa: Make, nosa_runs: ModuleType) -> None:
    (gap,) = [block for block in fresh_part(make_nosa(nosa_runs.FIRST)) if isinstance(block, MissingResult)]
    assert gap.command == "snakemake --cores 8 all --config profile=nosa-fresh"


def test_a_folder_without_results_is_an_error(tmp_path: Path, lychee_run: ModuleType, nosa_runs: ModuleType) -> None:
    folder = nosa_runs.write(
        tmp_path / "first", nosa_runs.FIRST, lychee_run.PROVENANCE, fresh_from=str(tmp_path / "nothing")
    )
    with pytest.raises(ReportError, match=r"fresh_from: .*nothing holds no results"):
        nosa_runs.page_inputs(folder)
