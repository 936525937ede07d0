"""The matrix of drafters and speedups over books, from texts that a tiny model wrote: numbers as its records have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from scipy.stats import t as student

from longdecode.evals.generation import job as jobs
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.storage import read_records, write_records
from longdecode.methods.registry import load_card, method_names
from longdecode.reporting.drafted import drafters
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.lossless import matrix
from longdecode.reporting.papers.blocks import Block, Cells, Listing, MissingResult, Picture, Prose, Section
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


def blocks_of(folder: Path, config: dict[str, Any], place: Path) -> list[Block]:
    names = ["streaming", "h2o"]
    return [block for section in sections_of(folder, config, place, names) for block in section.blocks
            if section.anchor.startswith("tiny")]  # fmt: skip


def sections_of(folder: Path, config: dict[str, Any], place: Path, names: Sequence[str]) -> list[Section]:
    results: Any = SimpleNamespace(confidence=0.95, config=config, profile="tiny")
    return matrix(results, folder, FigureWriter(place, looks(names, names, "full")))


def test_one_text_names_the_next_drafter_and_gives_no_interval(
    folder: Path, config: dict[str, Any], tmp_path: Path
) -> None:
    one = [r for r in read_records(folder / "generation" / "matrix.parquet", Record) if r.sample_index <= 0]
    write_records(tmp_path / "generation" / "matrix.parquet", one, Record)
    for place, said in ((tmp_path, True), (folder, False)):
        answer = next(b.text for b in blocks_of(place, config, tmp_path / "pages") if isinstance(b, Prose))
        assert ("one text gives no interval" in answer) == said
        assert len({name for name in ("`streaming`", "`h2o`") if name in answer}) == 1 + said


def test_the_matrix_answers_by_length_tree_and_drafter(
    folder: Path, config: dict[str, Any], speedups: dict[str, list[float]], tmp_path: Path
) -> None:
    blocks = blocks_of(folder, config, tmp_path)
    mean = {label: fmean(each) for label, each in speedups.items() if "+" in label}
    assert set(mean) == {*(f"streaming+{shape}" for shape in SHAPES), "h2o+2", "h2o+4"}
    ranked = sorted(mean, key=lambda label: -mean[label])
    drafter, _, shape = ranked[0].partition("+")
    tree = "2 branches" if "x" in shape else "chain"
    answer, paying = [block.text for block in blocks if isinstance(block, Prose)][:2]
    said = f"`{drafter}` with {shape[0]} drafted tokens ({tree}), {mean[ranked[0]]:.2f} times Full "
    assert said + interval(speedups[ranked[0]]) in answer and "2 texts; not yet held to Full's" in answer
    faster = sum(one > 1 for one in mean.values())
    assert f"{faster or 'None'} of 6 drafts {'are' if faster else 'is'} faster than plain decoding." in answer
    best = {name: next(label for label in ranked if label.startswith(name)) for name in ("streaming", "h2o")}
    for name, label in best.items():
        ours = next(part for part in paying.split(": ")[1].split("; ") if f"`{name}`" in part)
        assert ours.startswith(label.partition("+")[2][0] + " for ")
    won = sum(mean[f"streaming+{drafts}x2"] > mean[f"streaming+{drafts}"] for drafts in (2, 4))
    assert paying.endswith(f"A tree is faster than the chain of its length in {won} of 2 pairs.")

    fastest, every = (block for block in blocks if isinstance(block, Cells))
    assert list(fastest.heads) == ["Drafter", "2, chain", "4, chain", "2, 2 branches", "4, 2 branches", "Fastest"]
    shown = {row[0]: list(row[1:5]) for row in fastest.rows}
    assert shown == {
        name: [f"{mean[f'{name}+{shape}']:.2f}" if f"{name}+{shape}" in mean else "–" for shape in SHAPES]
        for name in ("streaming", "h2o")
    }
    rows = [dict(zip(every.heads, row, strict=True)) for row in every.rows]
    labels = [f"{row['Drafter']}+{row['Drafted']}" + ("x2" if row["Tree"] == "2 branches" else "") for row in rows]
    assert labels == ranked and "Budget" not in every.heads
    for row, label in zip(rows, labels, strict=True):
        assert (row["Over Full"], row["Interval"]) == (f"{mean[label]:.2f}", interval(speedups[label]))
        assert row["In this run"] == "2 of 2" and row["In float32"] == "–"
    (streaming,) = [row for row, label in zip(rows, labels, strict=True) if label == "streaming+4"]
    share = (PROMPT + 4 * BUDGET) / PROMPT / float(streaming["Tokens a step"])
    assert float(streaming["KV bytes, % of Full's"]) == pytest.approx(100 * share, abs=1)
    (lacking,) = [block for block in blocks if isinstance(block, Listing) and "h2o" in block.items[0]]
    assert lacking.items[0].startswith("`h2o+2x2` and `h2o+4x2`: unsupported: h2o drops tokens")

    (picture,) = [block for block in blocks if isinstance(block, Picture)]
    drawn = pd.read_csv(tmp_path / picture.figure.data)
    assert len(drawn) == 6 and sorted(drawn["value"]) == pytest.approx(sorted(mean.values()), abs=1e-3)


def test_a_draft_that_wrote_another_text_in_float32_is_not_the_best(
    folder: Path, config: dict[str, Any], speedups: dict[str, list[float]], tmp_path: Path, no_drawing: None
) -> None:
    ranked = sorted((label for label in speedups if "+" in label), key=lambda label: -fmean(speedups[label]))
    place = {"model": "tiny", "sampler": "greedy", "batch": 3, "status": "ok"}
    rows = [place | {"label": ranked[0], "identical": 2}, place | {"label": ranked[1], "identical": 3}]
    made = tmp_path / "checked"
    made.mkdir()
    (made / "generation").symlink_to(folder / "generation")
    pd.DataFrame(rows).to_csv(made / "exact_texts.csv", index=False)
    blocks = blocks_of(made, config, tmp_path)
    answer = next(block.text for block in blocks if isinstance(block, Prose))
    second, _, shape = ranked[1].partition("+")
    assert f": `{second}` with {shape[0]} drafted" in answer and "3 of 3 texts in float32 are Full's" in answer
    assert " of 5 drafts " in answer
    every = [block for block in blocks if isinstance(block, Cells)][-1]
    checked = [row[list(every.heads).index("In float32")] for row in every.rows]
    assert checked == ["2 of 3", "3 of 3", "–", "–", "–", "–"]


def test_drafters_are_named_with_their_methods(folder: Path) -> None:
    records = read_records(folder / "generation" / "matrix.parquet", Record)
    assert drafters(records) == {"streaming": "streaming", "h2o": "h2o"}


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


def altered(record: Record, pace: float = 1.0, **origin: Any) -> Record:
    """Return a text as another job or checkpoint would have written it, its drafts ``pace`` times as slow."""
    times = {name: pace * ms for name, ms in record.measures.items() if name.endswith("_ms") and record.label != "full"}
    model = origin.pop("model", record.model)
    provenance = record.provenance.model_copy(update=origin)
    return record.model_copy(update={"model": model, "measures": record.measures | times, "provenance": provenance})


def many(folder: Path, made: Path, fork_weights: str = "f0" * 32) -> Path:
    """Write three matrices: one of old code, one of today's with fewer drafters, one of a fork."""
    records = read_records(folder / "generation" / "matrix.parquet", Record)
    few = [r for r in records if r.label in ("full", "ngram", "streaming+2", "streaming+4")]
    files = {
        "matrix": [altered(r, 2.0, started_at="2020-01-01T00:00:00+00:00", code_hash="0" * 64) for r in records],
        "matrix_blocks": [altered(r, started_at="2020-01-02T00:00:00+00:00", device="other") for r in few],
        "matrix_fork": [altered(r, 0.5, model="fork", model_hash=fork_weights) for r in few],
    }
    for name, texts in files.items():
        write_records(made / "generation" / f"{name}.parquet", texts, Record)
    return made


def test_of_two_matrices_the_newer_stands_and_old_code_is_marked(
    folder: Path, config: dict[str, Any], speedups: dict[str, list[float]], tmp_path: Path, no_drawing: None
) -> None:
    made = many(folder, tmp_path)
    sections = sections_of(made, config, tmp_path / "pages", ["streaming", "h2o"])
    at = {section.anchor: section.blocks for section in sections}
    blocks = next(blocks for anchor, blocks in at.items() if anchor.startswith("tiny"))
    *_, every, twice = [block for block in blocks if isinstance(block, Cells)]
    rows = {(row[0], row[1], row[2]): dict(zip(every.heads, row, strict=True)) for row in every.rows}
    mean = {label: fmean(each) for label, each in speedups.items()}
    new, old = rows["streaming", "2", "chain"], rows["streaming", "2", "2 branches"]
    assert (new["Run"], new["Code"], new["Over Full"]) == ("matrix_blocks", "today's", f"{mean['streaming+2']:.2f}")
    assert (old["Run"], old["Code"]) == ("matrix", "measured before")
    assert new["Device"] == "other" != old["Device"] and "other" in every.caption and old["Device"] in every.caption
    told = [block.text for block in blocks if isinstance(block, Prose)]
    assert any(text.endswith(": each speed is over Full's on its own device.") for text in told)
    assert old["Over Full"] == f"{mean['streaming+2x2'] / 2:.2f}" and new["Texts"] == "2"
    assert twice.fold and [list(row) for row in twice.rows] == [
        ["streaming", shape, str(BUDGET), "matrix_blocks", f"{mean[label]:.2f}", "today's", "matrix",
         f"{mean[label] / 2:.2f}", "measured before"]
        for label, shape in (("streaming+2", "2, chain"), ("streaming+4", "4, chain"))
    ]  # fmt: skip


def test_checkpoints_have_tables_of_their_own(
    folder: Path, config: dict[str, Any], speedups: dict[str, list[float]], tmp_path: Path, no_drawing: None
) -> None:
    made, names = many(folder, tmp_path), ["streaming", "h2o"]
    known = config | {"models": config["models"] | {"fork": {"path": "results/t/forks/tiny/nosa/model"}}}
    best, *sections = sections_of(made, known, tmp_path / "pages", names)
    assert [section.title.split(",")[0] for section in sections[:2]] == ["tiny", "fork"]
    for section, drafters_of in zip(sections[:2], ({"streaming", "h2o"}, {"streaming"}), strict=True):
        table = [block for block in section.blocks if isinstance(block, Cells) and not block.fold][-1]
        assert {row[0] for row in table.rows} == drafters_of
    assert "fork (weights f0f0f0f0), tiny trained on for nosa, sampler greedy" in table.caption
    ranked, across = [block for block in best.blocks if isinstance(block, Cells)]
    assert [row[0].split(" ")[0] for row in ranked.rows] == ["tiny", "fork"]
    assert [(row[0], row[2] == "–") for row in across.rows] == [("streaming", False), ("h2o", True)]
    fast = max(fmean(speedups[label]) for label in ("streaming+2", "streaming+4"))
    assert across.rows[0][0] == "streaming" and across.rows[0][2] == f"{2 * fast:.2f}"

    other = [
        altered(r, model_hash="ab" * 32) for r in read_records(made / "generation" / "matrix_fork.parquet", Record)
    ]
    write_records(made / "generation" / "matrix_fork_again.parquet", other, Record)
    titles = [section.title for section in sections_of(made, known, tmp_path / "pages", names)]
    assert sorted(title.split(",")[0] for title in titles[1:4]) == [
        "fork (weights abababab)", "fork (weights f0f0f0f0)", "tiny",
    ]  # fmt: skip


def test_methods_without_a_text_are_told_from_registry_records_and_configuration(
    folder: Path, config: dict[str, Any], tmp_path: Path, no_drawing: None
) -> None:
    runs = {"matrix_blocks": RUN | {"drafters": ["blocks", "streaming"]}}
    known = config | {
        "methods": config["methods"] | {"blocks": {"method": "shadowkv"}, "quest": {}},
        "generation": config["generation"] | {"runs": config["generation"]["runs"] | runs},
    }

    def told(place: Path) -> tuple[dict[str, str], list[MissingResult]]:
        section = next(s for s in sections_of(place, known, tmp_path / "pages", ["streaming"]) if s.anchor == "missing")
        (items,) = [block.items for block in section.blocks if isinstance(block, Listing)]
        reasons = {item.partition(": ")[0].strip("`"): item.partition(": ")[2] for item in items}
        return reasons, [block for block in section.blocks if isinstance(block, MissingResult)]

    reasons, holes = told(folder)
    attention = {name for name in method_names() if load_card(name).kind == "attention"}
    assert set(reasons) == attention - {"full", "streaming", "h2o"}
    assert reasons["shadowkv"] == "configured in `matrix_blocks` on tiny, no record."
    assert reasons["quest"] == "no run of this configuration lets it draft."
    assert reasons["retro"].startswith("cannot draft: speculate: drafter = 'retro' writes over")
    assert [hole.command for hole in holes] == [
        "snakemake --cores 8 results/tiny/generation/matrix_blocks.parquet --config profile=tiny"
    ]

    records = read_records(folder / "generation" / "matrix.parquet", Record)
    one = next(r for r in records if r.label == "streaming+2")
    failed = {"status": "oom", "reason": "does not fit", "score": None, "measures": {}, "sample_index": -1}
    shadow = {"label": "blocks+2", "params": one.params | {"drafter": "shadowkv"}}
    write_records(tmp_path / "generation" / "matrix.parquet", records, Record)
    write_records(tmp_path / "generation" / "matrix_blocks.parquet", [one.model_copy(update=shadow | failed)], Record)
    assert told(tmp_path)[0]["shadowkv"] == "oom on tiny: does not fit." and told(tmp_path)[1] == []
    write_records(tmp_path / "generation" / "matrix_blocks.parquet", [one.model_copy(update=shadow)], Record)
    assert "shadowkv" not in told(tmp_path)[0]
