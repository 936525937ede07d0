"""A paper's page: claims first, cells of print beside ours, grey where nothing ran; nothing is computed there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from longdecode.evals.analysis import claims, comparisons, measures
from longdecode.evals.analysis.declaration import load_declarations
from longdecode.evals.analysis.query import Tables
from longdecode.reporting.build import build_report
from longdecode.reporting.papers.page import PaperPage, paper_pages, short_mark

PAPERS = Path(__file__).parents[3] / "reporting" / "papers"


@pytest.fixture
def analysed(tmp_path: Path) -> Path:
    """A folder in which RetroAttention's step was timed, its overlap traced, and it was compared with Quest."""
    step = {"model": "llama3-8b", "over": "quest", "context": 131072, "batch": 1, "budget": "4096", "n": 8}
    rows = [
        {"measure": "extra_ms", "variant": "retro", "value": 0.271, "low": 0.262, "high": 0.283, "unit": "ms", **step},
        {"measure": "overlap_top", "model": "miniature", "variant": "quest", "task": "t", "context": 16384,
         "budget": "512", "at": 1, "n": 1, "value": 61.2, "unit": "percent"},
    ]  # fmt: skip
    pd.DataFrame(rows, columns=list(measures.COLUMNS)).to_csv(tmp_path / "measures.csv", index=False)
    pair = {
        "a": "retro", "b": "quest", "model": "miniature", "b_model": "miniature", "suite": "mini_longgen",
        "task": "all", "context": 4096, "batch": 8, "budget": "512", "b_budget": "512", "n": 64, "a_value": 60.0,
        "b_value": 50.0, "difference": 10.0, "low": 4.5, "high": 15.5, "unit": "points", "better": "higher",
        "p": 0.001, "p_holm": 0.004, "margin": 2.0, "verdict": "within", "status": "ok", "revision": "abc",
    }  # fmt: skip
    table = pd.DataFrame([pair, pair | {"a": "tova"}], columns=list(comparisons.COLUMNS))
    table.to_csv(tmp_path / "comparisons.csv", index=False)
    claims.claims_table(load_declarations(PAPERS), Tables.read(tmp_path)).to_csv(tmp_path / "claims.csv", index=False)
    return tmp_path


@pytest.fixture
def page(analysed: Path) -> PaperPage:
    (found,) = paper_pages(analysed)
    return found


def test_only_papers_with_a_number_have_a_page(page: PaperPage, tmp_path: Path) -> None:
    assert (page.name, page.title, page.facts.venue) == ("retro", "RetroAttention", "ICLR")
    assert paper_pages(tmp_path / "nothing") == []


def test_claims_are_those_of_the_table(page: PaperPage) -> None:
    shown = {claim["claim"]: claim for claim in page.claims}
    step = shown["Time a token over Quest's, window 2"]
    assert (step["published"], step["ours"], step["interval"]) == ("under 1 ms", "0.27", "[0.26, 0.28]")
    assert (step["verdict"], step["best"], step["source"]) == ("reproduced", "0.27 (retro)", "digests S, N, R")
    other = shown["Time a token over Quest's, window 8"]
    assert (other["published"], other["ours"], other["verdict"]) == ("about 2 ms", "", "not run")


def test_cells_hold_print_and_ours_and_grey_is_print_alone(page: PaperPage) -> None:
    tables = {table.title: table for table in page.tables}
    rows = {keys[0]: cells[0] for keys, cells in tables["Latency (Figure 6)"].rows}
    assert (rows["2"].printed, rows["2"].ours, rows["2"].interval) == ("under 1", "0.27", "[0.26, 0.28]")
    assert (rows["8"].printed, rows["8"].ours) == ("about 2", "")
    overlap = tables["Overlap (Figure 2b)"].rows[0][1][0]
    assert (overlap.printed, overlap.ours, overlap.interval) == ("about 70", "61.2", "n = 1")
    assert tables["Overlap (Figure 2b)"].stands == "quest; model miniature; context 16384; budget 512"


def test_measured_tables_come_first_and_every_printed_number_stays(page: PaperPage) -> None:
    assert [table.measured for table in page.tables] == sorted((t.measured for t in page.tables), reverse=True)
    declared = load_declarations(PAPERS)["retro"].tables.values()
    printed = sum(bool(t.text(row, column)) for t in declared for row in t.rows for column in t.columns)
    assert printed == sum(bool(cell.printed) for t in page.tables for _, cells in t.rows for cell in cells)


def test_pairs_are_those_that_the_paper_asks_for(page: PaperPage) -> None:
    (pair,) = page.pairs
    assert pair == (
        "retro, miniature, 512 tokens", "quest, miniature, 512 tokens", "mini_longgen, 4K", "64", "+10.0 points",
        "[+4.5, +15.5]", "0.004", "within",
    )  # fmt: skip


def test_marks_are_short() -> None:
    assert short_mark("digest B; paper; digest C") == "paper; digests B, C" and short_mark("code") == "code"


@pytest.mark.usefixtures("no_drawing")
def test_the_report_has_the_page(run_folder: Path, analysed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    for name in ("measures.csv", "comparisons.csv", "claims.csv"):
        shutil.copy(analysed / name, run / name)
    build_report(run / "config.yaml", run, tmp_path / "pages")
    text = (tmp_path / "pages" / "paper-retro.html").read_text(encoding="utf-8")
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    assert "under 1 ms" in words and "under 1 / 0.27 [0.26, 0.28]" in words and "reproduced" in words
    assert words.index("Claims") < words.index("Tables as printed") < words.index("Sources")
    assert "paper-retro.html" in (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    assert not (tmp_path / "pages" / "paper-nosa.html").exists()
