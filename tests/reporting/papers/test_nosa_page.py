"""The page of NOSA: forks are found by their paths, differences are paired across them, holes name their command."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from longdecode.evals import curves, summary
from longdecode.evals.records import Record
from longdecode.evals.storage import write_records, write_table
from longdecode.reporting import verdicts, wording
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.papers.blocks import Compared, Comparison, MissingResult
from longdecode.reporting.papers.registry import PaperPage, papers_of
from longdecode.reporting.results import load_results
from longdecode.reporting.wording import gap_interval, p_value

FORKS = {"full": "full", "infllm2": "infllm2", "nosa": "nosa", "nosa_dma_head": "nosa"}
RIGHT = {
    ("dense", "full"): 20, ("fork-full", "full"): 22, ("fork-full", "infllm2"): 8, ("fork-infllm2", "infllm2"): 15,
    ("fork-nosa", "nosa"): 18, ("fork-nosa", "nosa_no_importance"): 9, ("fork-nosa_dma_head", "nosa"): 13,
}  # fmt: skip
"""Samples right, of 24: the first ones."""
CONFIG: dict[str, Any] = {
    "profile": "forked",
    "models": {"dense": {"path": "somewhere"}}
    | {f"fork-{name}": {"path": f"results/forked/forks/dense/{name}/model"} for name in FORKS},
    "methods": {
        "full": {}, "infllm2": {}, "nosa": {},
        "nosa_no_importance": {"method": "nosa", "suites": ["ruler"], "params": {"heads": "zero"}},
    },
    "budgets": [1024],
    "suites": {"ruler": {"contexts": [4096], "samples": 24}, "pg19_long": {"contexts": [4096], "samples": 8}},
    "adaptation": {
        "defaults": {"model": "dense"},
        "runs": {
            name: {"attention": kind, "head": "dma" if "head" in name else "ed_dma"} for name, kind in FORKS.items()
        },
    },
    "confidence": 0.95, "bootstrap_resamples": 200,
}  # fmt: skip


def scores(lychee_run: ModuleType) -> Iterator[Record]:
    for (model, label), right in RIGHT.items():
        spec = CONFIG["methods"][label]
        for index in range(24):
            yield Record(
                profile="forked", model=model, method=spec.get("method", label), label=label,
                params=spec.get("params", {}), suite="ruler", task="ruler_niah_multikey_2", task_version=1,
                metric="accuracy", unit="fraction", higher_is_better=True, data_source="generated",
                budget="full" if label == "full" else "1024", budget_tokens=None if label == "full" else 1024,
                context=4096, batch=4, seed=0, sample_index=index, status="ok", prompt_sha256=f"p{index}",
                score=float(index < right), parts=[float(index < right)], provenance=lychee_run.PROVENANCE,
                measures={"kv_tokens_read": 1024.0, "kv_tokens_read_sparse": 1024.0, "kv_bytes_per_step": 1e6,
                          "metadata_bytes_per_step": 0.0},
            )  # fmt: skip


LOSS = {("fork-full", "full"): 3.0, ("fork-infllm2", "infllm2"): 3.02, ("fork-nosa", "nosa"): 3.05}
"""Own losses of the first book, in nats; every book is 0.1 harder than the one before, for NOSA's fork by 0.102."""


def book_losses(lychee_run: ModuleType) -> Iterator[Record]:
    """Records of eight books, whose scores are distances from the same model's Full and not to be compared."""
    (like, *_) = scores(lychee_run)
    for (model, label), loss in LOSS.items():
        for book in range(8):
            own = loss + book * (0.102 if label == "nosa" else 0.1)
            yield like.model_copy(
                update={
                    "model": model, "label": label, "method": label, "suite": "pg19_long", "sample_index": book,
                    "task": "pg19_long_forced_1024", "metric": "loss_over_full", "unit": "nats/token",
                    "higher_is_better": False, "data_source": "real", "score": 7.0, "parts": None,
                    "budget": "full" if label == "full" else "1024", "prompt_sha256": f"b{book}",
                    "budget_tokens": None if label == "full" else 1024, "measures": {**like.measures, "loss": own},
                }
            )  # fmt: skip


def too_hard(lychee_run: ModuleType) -> Iterator[Record]:
    """Records of a second task, of which full attention answers one of 24 and NOSA's fork all."""
    for record in scores(lychee_run):
        right = record.label == "nosa" or record.sample_index == 0
        yield record.model_copy(
            update={"task": "ruler_niah_multikey_3", "score": float(right), "parts": [float(right)]}
        )


def write_run(folder: Path, lychee_run: ModuleType, more: bool, hard: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    records = [*scores(lychee_run), *book_losses(lychee_run), *(too_hard(lychee_run) if hard else ())]
    for place in {(r.model, r.label, r.suite) for r in records}:
        mine = [r for r in records if (r.model, r.label, r.suite) == place]
        write_records(folder / "records" / place[0] / place[1] / f"{place[2]}.parquet", mine, Record)
    write_table(folder / "summary.csv", summary.summarise(records, summary.Spread(0.95, 200, 0)))
    write_table(folder / "along_generation.parquet", curves.along_generation(records, 0.95))
    write_table(folder / "loss_by_position.parquet", curves.loss_by_position(records, 0.95))
    if not more:
        return folder
    rows = [
        {"label": name, "model": f"fork-{name}", "method": name, "text": "books", "context": 8192, "budget": 1024,
         "document": document, "layer": layer, "head": head, "steps": 1024, "worst": 0.7, "union": 0.4,
         "gamma": base + 0.001 * layer + by_text * document, "gamma_free": base - 0.05,
         "misses_64": 4.0, "misses_80": 1.5}
        for name, base, by_text in (("infllm2", 0.89, 0.0), ("nosa", 0.93, 0.01))
        for document in range(3)
        for layer in range(5)
        for head in range(2)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(folder / "locality.csv", index=False)
    fork = folder / "forks" / "dense" / "nosa"
    fork.mkdir(parents=True)
    settings = {"model": "dense", "attention": "nosa", "head": "ed_dma", "rows": 4, "length": 4096, "lr": 3e-4}
    (fork / "run.json").write_text(json.dumps({"settings": settings, "device": "H200"}), encoding="utf-8")
    with (fork / "curve.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "prose", "answers", "sure", "gamma", "seconds"])
        writer.writerow([250, 1.5, 3.1234, 0.2, 0.955, 0.93, 88])
    return folder


def page(folder: Path) -> PaperPage:
    labels = list(CONFIG["methods"])
    writer = FigureWriter(folder / "figures", looks(labels, labels, "full"))
    results = load_results(folder / "config.yaml", folder)
    found = papers_of(results, folder, writer, lambda model, suite: "", str, {"nosa": "nosa"})
    (mine,) = [paper for paper in found if paper.name == "nosa"]
    return mine


def rows_of(block: Comparison) -> dict[tuple[str, ...], Compared]:
    return {tuple(row.of): row for row in block.rows}


@pytest.fixture
def whole(tmp_path: Path, lychee_run: ModuleType) -> PaperPage:
    return page(write_run(tmp_path, lychee_run, more=True))


def texts(value: object) -> Iterator[str]:
    """Every text of a page's blocks."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for item in fields(value):
            yield from texts(getattr(value, item.name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)


def test_differences_between_forks_are_paired(whole: PaperPage) -> None:
    sections = {section.anchor: section for section in whole.paper.sections(whole.inputs)}
    over_full, lead, unmeasured = [b for b in sections["quality"].blocks if isinstance(b, Comparison)]
    rows = rows_of(over_full)
    points = {of: row.measured.replace("\u2212", "-") for of, row in rows.items()}
    assert points == {
        ("full", "infllm2", "1,024"): f"{100 * (8 - 22) / 24:.1f}",
        ("infllm2", "infllm2", "1,024"): f"{100 * (15 - 22) / 24:.1f}",
        ("nosa", "nosa", "1,024"): f"{100 * (18 - 22) / 24:.1f}",
    }  # fmt: skip
    assert "0 won, 4 lost" in rows["nosa", "nosa", "1,024"].reason
    # In print 49.6 - 51.6, for the sign.
    assert rows["nosa", "nosa", "1,024"].published.replace("\u2212", "-") == "-2.0"
    leads = {of: row.measured for of, row in rows_of(lead).items()}
    assert leads == {
        ("infllm2", "infllm2", "1,024"): f"+{100 * 3 / 24:.1f}", ("full", "infllm2", "1,024"): f"+{100 * 10 / 24:.1f}"
    }  # fmt: skip
    assert {row.of[0] for row in unmeasured.rows} == {"LongBench", "short tasks", "long reasoning"}
    assert all(row.reason and row.verdict == "not measured" and row.published != "–" for row in unmeasured.rows)
    (variants,) = [b for b in sections["parts"].blocks if isinstance(b, Comparison)]
    assert variants.rows[0].of == ["all importances 0"] and "0 won, 9 lost" in variants.rows[0].reason
    (books,) = [b for b in sections["books"].blocks if isinstance(b, Comparison)]
    losses = {of: (row.measured.replace("\u2212", "-"), row.verdict) for of, row in rows_of(books).items()}
    # Means over the books of 0.05 + 0.002 book, and of the same less 0.02.
    assert losses == {
        ("infllm2", "infllm2", "1,024"): ("+0.020", "more loss"), ("nosa", "nosa", "1,024"): ("+0.057", "more loss"),
        ("nosa minus infllm2", "infllm2", "1,024"): ("+0.037", "more loss"),
    }  # fmt: skip
    assert "8 books" in books.caption
    forms, between = [b for b in sections["heads"].blocks if isinstance(b, Comparison)]
    assert [(row.of, row.measured) for row in between.rows] == [(["ruler", "dma"], f"+{100 * 5 / 24:.1f}")]
    measured = {of[0]: row.measured for of, row in rows_of(forms).items()}
    assert measured["ed_dma"] == "75.0" and measured["dma"] == "54.2" and measured["retaining"] == "\u2013"


def test_a_method_minus_full_on_one_fork_is_the_row_that_the_suites_page_shows(whole: PaperPage) -> None:
    sections = {section.anchor: section for section in whole.paper.sections(whole.inputs)}
    shown = rows_of(next(b for b in sections["quality"].blocks if isinstance(b, Comparison)))
    table = whole.inputs.results.summary
    (row,) = [
        r for _, r in table.iterrows() if (r["model"], r["method"], r["suite"]) == ("fork-full", "infllm2", "ruler")
    ]
    own = shown["full", "infllm2", "1,024"]
    assert own.interval == gap_interval(row["diff_low"], row["diff_high"], "fraction")
    assert own.reason.endswith(f"{p_value(row['p_holm'])} after Holm")
    # No row of the summary compares two models.
    assert "after Holm" not in shown["nosa", "nosa", "1,024"].reason


def test_a_task_that_full_attention_cannot_do_is_named_and_left_out(
    whole: PaperPage, tmp_path: Path, lychee_run: ModuleType
) -> None:
    (tmp_path / "hard").mkdir()
    hard = page(write_run(tmp_path / "hard", lychee_run, more=True, hard=True))
    (theirs, mine) = [
        {section.anchor: section for section in one.paper.sections(one.inputs)}["quality"].blocks
        for one in (whole, hard)
    ]
    assert [row.measured for b in theirs[2:] for row in b.rows] == [row.measured for b in mine[2:] for row in b.rows]  # type: ignore[union-attr]
    assert "`ruler_niah_multikey_3` (4.17 %)" in "".join(texts(mine[0]))
    assert "Left out" not in "".join(texts(theirs[0]))


def test_locality_and_training_are_shown(whole: PaperPage) -> None:
    sections = {section.anchor: section for section in whole.paper.sections(whole.inputs)}
    shown = [b for b in sections["locality"].blocks if isinstance(b, Comparison)]
    rows = rows_of(shown[0])
    # The worst step was 0.7, under 47 of 64 blocks.
    assert (rows["bound",].published, rows["bound",].measured, rows["bound",].verdict) == ("75", "70.0", "broken")
    assert rows["nosa",].measured == "94.2" and rows["nosa",].published == "94.4" and rows["nosa",].verdict == "agree"
    gap = shown[1].rows[0]
    assert gap.measured == "+5.0" and gap.verdict == "above 0" and gap.published == "5.0"
    # By text 4, 5 and 6 points: the interval is over these, not over the ten heads.
    assert gap.reason == "3 texts; above 0 in 10 of 10 pairs of layer and head"
    assert gap.interval.strip("[]").replace(" ", "").startswith("+4.0")
    assert rows_of(shown[2])["nosa", "64 slots"].published == "3.58"
    (claim,) = [row for row in sections["claims"].blocks[1].rows if "Overlap" in row.of[0]]  # type: ignore[union-attr]
    assert claim.measured == "+5.0"
    assert {"4.10 M", "3.1234", "95.5", "93.0"} <= set(texts(sections["forks"].blocks[1]))


def test_overviews_leave_out_models_on_which_only_full_runs(tmp_path: Path, lychee_run: ModuleType,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    only = {"infllm2": {"models": ["fork-full"]}, "nosa": {"models": ["fork-nosa"]}}
    monkeypatch.setitem(CONFIG, "methods", {**CONFIG["methods"], **only})
    results = page(write_run(tmp_path, lychee_run, more=False)).inputs.results
    main = results.without(results.ablations)
    assert [model for model in main.models if main.compares(model)] == ["fork-full", "fork-nosa"]
    assert verdicts.board(main, "dense") == []
    assert [label for label, _, _ in verdicts.board(main, "fork-nosa")[0].rows] == ["nosa"]


def test_holes_name_the_command_that_fills_them(tmp_path: Path, lychee_run: ModuleType) -> None:
    paper = page(write_run(tmp_path, lychee_run, more=False))
    holes = {
        section.anchor: block.command
        for section in paper.paper.sections(paper.inputs)
        for block in section.blocks
        if isinstance(block, MissingResult)
    }
    assert holes["forks"] == "snakemake --cores 8 nosa_train --config profile=nosa"
    assert holes["locality"] == "snakemake --cores 8 nosa_locality --config profile=nosa"
    assert "throughput" in holes
    assert np.isfinite(paper.published.tables["speedups"].rows[0]["ratio"])


def test_a_rival_at_the_budget_of_equal_reads_has_a_row_with_what_it_reads(
    tmp_path: Path, lychee_run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InfLLM-V2 with a budget of its own, 952 tokens: it reads 960 and has 12 of 24 right, four more than at 1,024."""
    label = "infllm2_equal"
    own = {"method": "infllm2", "models": ["fork-full"], "suites": ["ruler"], "budgets": [952]}
    monkeypatch.setitem(CONFIG, "methods", {**CONFIG["methods"], label: own})
    monkeypatch.setitem(RIGHT, ("fork-full", label), 12)
    records = write_records
    change = {"budget": "952", "budget_tokens": 952}

    def priced(path: Path, found: list[Record], schema: type[Record]) -> None:
        if label in path.parts:
            found = [
                r.model_copy(update={**change, "measures": {**r.measures, "kv_tokens_read": 960.0}}) for r in found
            ]
        records(path, found, schema)

    monkeypatch.setattr(f"{__name__}.write_records", priced)
    paper = page(write_run(tmp_path, lychee_run, more=False))
    sections = {section.anchor: section for section in paper.paper.sections(paper.inputs)}
    over_full, lead, _ = [b for b in sections["quality"].blocks if isinstance(b, Comparison)]
    (name,) = [of for of in rows_of(over_full) if "952" in of[1]]
    assert name == ("full", "infllm2, budget 952 tokens", "960")
    assert rows_of(lead)[name].measured == f"+{100 * 6 / 24:.1f}"


def test_a_place_is_set_beside_the_full_fork_that_was_scored_there(
    tmp_path: Path, lychee_run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full attention was trained again: books have that training alone, look-ups both."""
    again = "fork-full_again"
    monkeypatch.setitem(CONFIG["models"], again, {"path": "results/forked/forks/dense/full_again/model"})
    monkeypatch.setitem(CONFIG["adaptation"]["runs"], "full_again", {"attention": "full"})
    monkeypatch.setitem(RIGHT, (again, "full"), 23)
    monkeypatch.setitem(RIGHT, (again, "infllm2"), 17)
    monkeypatch.delitem(LOSS, ("fork-full", "full"))
    monkeypatch.setitem(LOSS, (again, "full"), 3.1)
    paper = page(write_run(tmp_path, lychee_run, more=False))
    sections = {section.anchor: section for section in paper.paper.sections(paper.inputs)}
    over_full, lead, _ = [b for b in sections["quality"].blocks if isinstance(b, Comparison)]
    (row,) = [row for of, row in rows_of(over_full).items() if of[:2] == ("full_again", "infllm2")]
    assert row.measured == wording.number(-500 / 24, 1, signed=True)
    assert {of[:2] for of in rows_of(lead)} >= {("full", "infllm2"), ("full_again", "infllm2")}
    (books,) = [b for b in sections["books"].blocks if isinstance(b, Comparison)]
    (row,) = [row for of, row in rows_of(books).items() if of[0] == "infllm2"]
    assert row.measured == wording.number(-0.08, 3, signed=True)


def test_a_part_that_the_other_run_holds_is_a_link_and_no_hole(whole: PaperPage) -> None:
    """As the run that trained the forks would have it, and as the run that timed the host cache would."""
    for profile, other, gone, kept in (
        ("nosa", "offload", "throughput", "forks"),
        ("offload", "nosa", "forks", "throughput"),
    ):
        inputs = replace(whole.inputs, results=replace(whole.inputs.results, profile=profile))
        sections = {section.anchor: section for section in whole.paper.sections(inputs)}
        assert kept in sections and gone not in sections
        assert f"(../{other}/paper-nosa.html#{gone})" in "".join(texts(sections["elsewhere"].blocks[0]))
        assert not any(
            isinstance(b, MissingResult) and f"profile={other}" in b.command
            for s in sections.values()
            for b in s.blocks
        )
        claims = next(b for b in sections["claims"].blocks if isinstance(b, Comparison))
        assert [("Overlap" in row.of[0]) for row in claims.rows] == ([True] if profile == "nosa" else [False] * 3)
    assert "elsewhere" not in {section.anchor for section in whole.paper.sections(whole.inputs)}


def test_figures_hold_what_the_tables_are_made_of(whole: PaperPage) -> None:
    list(whole.paper.sections(whole.inputs))
    figures = whole.inputs.writer.folder
    layers = pd.read_csv(figures / "paper-nosa-layers.csv").set_index(["method", "layer"])
    # 0.93 and a thousandth a layer, and a hundredth a text, of which there are three.
    assert layers.loc[("nosa", 2), "gamma"] == pytest.approx(0.942)
    assert (layers["lowest_head"] <= layers["gamma"]).all() and (figures / "paper-nosa-layers.svg").is_file()
    assert pd.read_csv(figures / "paper-nosa-training.csv")["prose"].tolist() == [3.1234]


def test_losses_along_a_continuation_are_over_the_full_forks(
    tmp_path: Path, lychee_run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NOSA's fork climbs by 0.01 a stretch over full attention's, so that the last quarter has 0.06 on the first."""
    plain = book_losses

    def along(run: ModuleType) -> Iterator[Record]:
        for record in plain(run):
            climb = 0.01 if record.label == "nosa" else 0.0
            stretches = {f"loss_from_{64 * n}": 3.0 + climb * n for n in range(8)}
            yield record.model_copy(update={"measures": {**record.measures, **stretches}})

    monkeypatch.setattr(f"{__name__}.book_losses", along)
    paper = page(write_run(tmp_path, lychee_run, more=False))
    said = next("".join(texts(s.blocks[-1])) for s in paper.paper.sections(paper.inputs) if s.anchor == "books")
    assert "nosa +0.060 nats" in said and "no climb" not in said
    drawn = pd.read_csv(paper.inputs.writer.folder / "paper-nosa-along.csv")
    assert drawn[drawn["method"] == "nosa"]["loss_over_full_fork"].round(4).tolist() == [0.005, 0.025, 0.045, 0.065]
