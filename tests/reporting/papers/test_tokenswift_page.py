"""The page of TokenSwift, from small written texts: numbers by hand, holes with commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from longdecode.evals.hashing import code_hash
from longdecode.evals.plan import Plan, config_path
from longdecode.evals.records import Record
from longdecode.evals.run_config import load_run_config
from longdecode.evals.storage import read_records, stamped_drafters, write_records
from longdecode.reporting.build import build_report
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers.blocks import Cells, Comparison, Picture, Prose
from longdecode.reporting.papers.registry import load_paper
from longdecode.reporting.papers.tokenswift.exactness import exact, replayed
from longdecode.reporting.papers.tokenswift.heads import heads
from longdecode.reporting.papers.tokenswift.steps import composed, steps
from longdecode.reporting.papers.tokenswift.tables import Mirror, one_text
from longdecode.reporting.papers.tokenswift.texts import fulls, run_of, standing, value, written
from longdecode.reporting.results import TextFile
from longdecode.reporting.staleness import measured_before

ROOT = Path(__file__).parents[3]
MARKS = (20_480, 102_400)
MS = {"full": 4.0, "tokenswift": 2.0, "tokenswift_k0": 2.5, "quest+4": 3.0, "streaming+2": 1.0}
STEPS = {"tokenswift": 4, "tokenswift_k0": 2, "quest+4": 3, "streaming+2": 2}
"""Tokens a step."""


def texts(lychee_run: ModuleType) -> Iterator[Record]:
    for label, ms in MS.items():
        for number in (0, 1):
            tokens = MARKS[-1]
            each = STEPS.get(label, 1)
            measures: dict[str, float] = {
                "tokens": tokens, "depth": 0 if label == "full" else 4, "rows": 5, "cuda_graph": 1,
                "looks_every_steps": 16,
                "loss_full": 2.5, "repeated_8": 0.25, "tokens_per_step": each, "alpha": (each - 1) / 4, "beta": 0.1,
                "tv_27": 0.4, "tv_27_low": 0.38, "tv_27_high": 0.42, "tv_27_drawn": 0.401, "tv_47": 0.45,
                "tv_47_low": 0.43, "tv_47_high": 0.47, "tv_47_drawn": 0.452, "tv_exact_drawn": 0.001, "q_first": 0.5,
                "law_positions": 1000,
            }  # fmt: skip
            measures |= {f"distinct_{n}{kind}": 0.1 * n for n in (1, 2, 3, 4) for kind in ("", "_window", "_line")}
            for mark in MARKS:
                measures |= {f"at_{mark}_tokens": mark + 1, f"at_{mark}_steps": mark / each,
                             f"at_{mark}_ngram_tokens": 8,
                             f"at_{mark}_ms": mark * ms * (1 + 0.1 * number), f"at_{mark}_host_mib": 900}  # fmt: skip
            if label != "full":
                measures |= {"identical": 1.0, "same_tokens": tokens}
            yield Record(
                profile="swift", model="tiny", method=label, label=label, params={}, suite="generation", task="minp",
                task_version=1, metric="tokens_per_step", unit="tokens", higher_is_better=True, data_source="real",
                budget="full", budget_tokens=None, context=4096, batch=1, seed=0, sample_index=number, status="ok",
                score=float(each), measures=measures, provenance=lychee_run.PROVENANCE,
                output_text="It was a dark night.\n" * 200 if label == "full" else None,
            )  # fmt: skip
    yield Record(
        profile="swift", model="tiny", method="speculate", label="h2o+4x2", params={}, suite="generation", task="minp",
        task_version=1, metric="tokens_per_step", unit="tokens", higher_is_better=True, data_source="real",
        budget="512", budget_tokens=512, context=4096, batch=1, seed=0, sample_index=-1,
        status="unsupported", reason="must be fed",
        provenance=lychee_run.PROVENANCE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, lychee_run: ModuleType) -> Path:
    made = tmp_path_factory.mktemp("swift")
    write_records(made / "generation" / "long.parquet", list(texts(lychee_run)), Record)
    return made


def test_values_are_means_over_prompts_paired_with_full(folder: Path) -> None:
    own, theirs = written(folder, label="tokenswift"), fulls(folder)
    speedup = value(own, theirs, "speedup", 20_480)
    assert speedup is not None and abs(speedup.mean - 2) < 1e-9 and speedup.prompts == 2
    alpha = value(own, theirs, "alpha", 102_400)
    assert alpha is not None and abs(alpha.mean - 0.75) < 1e-9
    minutes = value(own, theirs, "minutes", 102_400)
    assert minutes is not None and minutes.each == pytest.approx([102_400 * 2 / 60_000, 102_400 * 2.2 / 60_000])
    assert value(own, theirs, "alpha", 5) is None and value(own, theirs, "distinct_2", 20_480) is None


def test_the_label_with_the_longest_text_stands(folder: Path) -> None:
    records = written(folder, sample_index=0)
    cut = [r.model_copy(update={"measures": r.measures | {"tokens": 9.0}}) if r.label == "tokenswift" else r
           for r in records]  # fmt: skip
    for given, labels, label in (
        (records, "tokenswift_k0", "tokenswift_k0"), (records, ["tokenswift", "tokenswift_k0"], "tokenswift"),
        (cut, ["tokenswift", "tokenswift_k0"], "tokenswift_k0"), (records, ["none", "tokenswift"], "tokenswift"),
    ):  # fmt: skip
        assert {r.label for r in standing(given, labels)} == {label}
    assert standing(records, ["none"]) == []


def test_distinct_tables_compare_texts_of_one_length(folder: Path, tmp_path: Path) -> None:
    short = [
        r.model_copy(update={"task": task, "measures": r.measures | {"tokens": 20_480, "distinct_1": 0.5}})
        for r in written(folder, label="tokenswift") for task in ("minp", "minp_13")
    ]  # fmt: skip
    place = tmp_path / "generation"
    write_records(place / "long.parquet", written(folder), Record)
    write_records(place / "short.parquet", short, Record)
    paper = load_paper("tokenswift")
    inputs: Any = SimpleNamespace(
        folder=tmp_path, published=paper.published, words=lambda section: paper.words[section],
        results=SimpleNamespace(models=(), confidence=0.95),
    )  # fmt: skip
    table, absent = Mirror("theta", "theta", ("distinct_1",))(inputs)
    assert isinstance(table, Comparison) and isinstance(absent, Comparison)
    assert {row.of[0]: row.measured for row in table.rows} == {"1.2": "0.50", "1.3": "0.50"}
    assert "Table 8: 4 printed figures not measured" in absent.fold and {row.reason for row in absent.rows} >= {
        "no text of tokenswift_lean and tokenswift drawn by minp_plain"
    }


def test_a_replay_counts_what_float32_draws_alike(folder: Path, tmp_path: Path, no_drawing: None) -> None:
    words = load_paper("tokenswift").words
    inputs: Any = SimpleNamespace(
        folder=folder, words=lambda part: words[part], missing=lambda *_: None, results=SimpleNamespace(confidence=0.95)
    )
    made = shutil.copytree(folder, tmp_path / "replayed")
    row = {"run": "long", "model": "tiny", "sampler": "minp", "context": 4096, "tokens": 400, "largest": 0.25}
    rows = [
        row | {"label": label, "budget": "full", "sample": number, "drawn": count, "beyond_0.125": 3, "beyond_0.25": 0}
        for label, count in (("full", 392), ("tokenswift", 396), ("quest+4", 390)) for number in (0, 1)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(made / "replay.csv", index=False)
    inputs.folder = made
    table = next(block for block in replayed(inputs) if isinstance(block, Cells))
    assert [list(line[4:]) for line in table.rows][::2] == [
        ["400", "98.0\u202f%", "3", "0", "0.250"], ["400", "99.0\u202f%", "3", "0", "0.250"],
    ]  # fmt: skip


def test_a_text_is_paired_with_fulls_of_its_own_job(folder: Path, tmp_path: Path) -> None:
    """Another job's Full was half as fast; the longer text stands where a prompt has two."""
    made = shutil.copytree(folder, tmp_path / "two")
    jobs = [r for r in written(folder) if "+" not in r.label]

    def slower(r: Record) -> Record:
        times = {name: 2 * value for name, value in r.measures.items() if name.endswith("_ms")}
        return r.model_copy(update={"measures": r.measures | (times if r.label == "full" else {"tokens": 20_480.0})})

    write_records(made / "generation" / "again.parquet", [slower(r) for r in jobs], Record)
    own = written(made, label="tokenswift", sample_index=0)
    seen = {run_of(made, r): value([r], fulls(made), "speedup", 20_480) for r in own}
    assert {run: round(v.mean, 6) for run, v in seen.items() if v} == {"long": 2.0, "again": 4.0}
    assert [run_of(made, r) for r in standing(own, "tokenswift")] == ["long"]


def test_lossless_texts_in_float32_are_counted(folder: Path, tmp_path: Path) -> None:
    words = load_paper("tokenswift").words
    config: dict[str, Any] = {"generation": {"runs": {}}}
    inputs: Any = SimpleNamespace(folder=folder, words=lambda part: words[part], missing=lambda *_: Prose("missing"),
                                  results=SimpleNamespace(config=config))  # fmt: skip
    assert len(exact(inputs)) == 2
    row = {
        "model": "tiny",
        "sampler": "minp",
        "batch": 3,
        "prompts": "9 7 5",
        "tokens": 2000,
        "status": "ok",
        "identical": 3.0,
    }
    rows = [row | {"label": "tokenswift"}, row | {"label": "quest+4"},
            row | {"label": "h2o+4x2", "status": "unsupported", "identical": None}]  # fmt: skip
    inputs.folder = tmp_path
    pd.DataFrame(rows).to_csv(tmp_path / "exact_texts.csv", index=False)
    pd.DataFrame([*rows, row | {"label": "ngram", "identical": 2.0}]).to_csv(tmp_path / "exact_texts.csv", index=False)
    table = next(block for block in exact(inputs) if isinstance(block, Cells))
    others = "h2o+4x2: unsupported, ngram: other text"
    assert list(table.rows[0][3:]) == ["9, 7, 5", "2,000", "3", "8 of 9", "–", others]
    counted = [line | {"tokens_per_step": 1.5 + number} for number, line in enumerate(rows)]
    pd.DataFrame(counted).to_csv(tmp_path / "exact_texts.csv", index=False)
    table, folded = (block for block in exact(inputs) if isinstance(block, Cells))
    assert table.rows[0][-2] == "1.50 (tokenswift) to 2.50 (quest+4)"
    assert folded.fold and [list(line) for line in folded.rows] == [
        ["tiny", "tokenswift", "1.50"], ["tiny", "quest+4", "2.50"],
    ]  # fmt: skip
    assert folded.heads[2] == "minp, batch of 3"
    drafts = {"model": "tiny", "labels": ["tokenswift", "printed"], "drafters": ["quest", "tidal"], "branches": [1, 2]}
    config |= {"methods": {"printed": {"params": {"mode": "faithful"}}}, "generation": {"runs": {"all": drafts}}}
    untried = next(block for block in exact(inputs) if isinstance(block, Cells) and block.heads[1] == "Writers")
    assert untried.rows == [["tiny", "quest+4x2, tidal+4, tidal+4x2"]] and untried.fold


def test_texts_of_other_code_are_named_as_such(folder: Path) -> None:
    (full,) = written(folder, label="full", sample_index=0)
    (found,) = measured_before([], [], texts=[TextFile([full])])
    assert "texts of full" in found
    assert measured_before([], [], texts=[TextFile([_of_today(full, "full")])]) == []


def test_code_of_a_method_that_drafts_counts_as_code_of_the_text(folder: Path, tmp_path: Path) -> None:
    (full,) = written(folder, label="full", sample_index=0)
    by_quest = full.model_copy(update={"method": "speculate", "label": "quest+4", "params": {"drafter": "quest"}})
    texts = [_of_today(record, "full", "speculate") for record in (full, by_quest)]
    write_records(tmp_path / "matrix.parquet", texts, Record)
    stamped = stamped_drafters(tmp_path / "matrix.parquet")
    assert read_records(tmp_path / "matrix.parquet", Record) == texts and list(stamped) == ["quest"]
    assert measured_before([], [], texts=[TextFile(texts, stamped)]) == []
    for other in ({}, {"quest": "0" * 64}, {"tidal": stamped["quest"]}):
        (found,) = measured_before([], [], texts=[TextFile(texts, other)])
        assert "texts of quest+4 " in found


def _of_today(record: Record, *writers: str) -> Record:
    today = code_hash(["longdecode.evals.generation.job"], writers)
    return record.model_copy(update={"provenance": record.provenance.model_copy(update={"code_hash": today})})


def test_words_name_labels_and_samplers_of_the_configuration_and_settings_in_print() -> None:
    run, paper = load_run_config(config_path(ROOT, "tokenswift")), load_paper("tokenswift")
    assert run.generation is not None
    made = Plan(run, ROOT).made
    named = [
        str(path) for label in ("tokenswift", "medusa") for m in run.models for path in run.methods[label].files_of(m)
    ]
    assert len(named) == 4 and set(named) <= set(made)
    tables = dict(paper.words["tables"])
    default = tables.pop("default")
    for name in {name for name, table in tables.items() if isinstance(table, dict)}:
        keys = paper.published.tables[name].keys
        printed = {str(row[key]) for row in paper.published.rows(name) for key in keys}
        printed |= {", ".join(str(row[key]) for key in keys) for row in paper.published.rows(name)}
        for setting, stands in (tables[name].get("rows") or {}).items():
            assert setting in printed, (name, setting)
            wanted = default | tables[name].get("default", {}) | (stands or {})
            labels = [wanted["label"]] if isinstance(wanted["label"], str) else wanted["label"]
            assert set(labels) <= set(run.methods) and wanted["sampler"] in run.generation.samplers


def test_a_composed_speedup_is_tokens_a_step_over_the_steps_time(folder: Path) -> None:
    timed = {"model": "llama3-8b", "budget": "4096", "context": 102_400, "bench": "decode", "batch": 1, "n": 9}
    rows = [
        {"label": "full", "stage": "step", "ratio": 1.0, "median_us": 6000.0},
        {"label": "full", "stage": "forward_rows", "ratio": 0.8, "median_us": 7500.0, "params": '{"rows": 41}'},
        {"label": "tokenswift", "stage": "speculative_step", "ratio": 0.5, "median_us": 12000.0},
        {"label": "tokenswift", "stage": "verify", "ratio": 0.625, "median_us": 9600.0},
        {"label": "medusa", "stage": "speculative_step", "ratio": 0.9, "median_us": 6700.0},
    ]
    words = load_paper("tokenswift").words
    inputs: Any = SimpleNamespace(
        folder=folder, words=lambda part: words[part], missing=lambda *_: None,
        speed=SimpleNamespace(table=pd.DataFrame([timed | row for row in rows])),
    )  # fmt: skip
    (table,) = [block for block in composed(inputs) if isinstance(block, Cells)]
    assert table.rows == [
        ["llama3-8b", "tokenswift", "4096", "tiny, minp, 4,096", "4.00", "2.00", "2.00"]
    ]  # medusa wrote nothing
    parts, baselines = (block for block in steps(inputs) if isinstance(block, Cells))
    assert list(parts.rows[0]) == ["llama3-8b", "tokenswift", "5", "4096", "102,400", "–", "1.60", "–", "2.00"]
    assert [row[1:] for row in baselines.rows][:2] == [
        ["ours, in a CUDA graph", "102,400", "6.00"], ["the paper's own loop, A100", "mean to 102,400", "172"],
    ]  # fmt: skip


def test_the_report_has_the_page_and_the_text(
    folder: Path, make_run: Callable[..., Path], no_drawing: None, tmp_path: Path
) -> None:
    run = make_run(("full", "quest"), ("mini_recall",))
    (run / "generation").symlink_to(folder / "generation")
    build_report(run / "config.yaml", run, tmp_path / "report")
    page = (tmp_path / "report" / "paper-tokenswift.html").read_text(encoding="utf-8")
    assert "tokenswift_train --config profile=" in page and "0.452" in page
    (text,) = (tmp_path / "report" / "texts").glob("*.txt")
    assert text.read_text(encoding="utf-8").startswith("It was a dark night.") and text.name in page


def test_of_a_long_text_the_two_ends_stand_beside_the_page(tmp_path: Path, lychee_run: ModuleType) -> None:
    paper = load_paper("tokenswift")
    first = next(texts(lychee_run))
    for length in (24_000, 24_001):
        whole = "".join(f"{number:8}" for number in range(length // 8 + 1))[:length]
        folder = tmp_path / str(length)
        write_records(folder / "generation" / "long.parquet", [first.model_copy(update={"output_text": whole})], Record)
        inputs: Any = SimpleNamespace(
            folder=folder, words=lambda part: paper.words[part], spec=SimpleNamespace(method="tokenswift"),
            writer=FigureWriter(folder / "pages", {}),
        )  # fmt: skip
        one_text(inputs)
        (shown,) = (folder / "pages" / "texts").glob("*.txt")
        ends = f"{whole[:12_000]}\n\n[...]\n\n{whole[-12_000:]}"
        assert shown.read_text(encoding="utf-8") == (whole if length == 24_000 else ends)


def test_heads_stand_beside_the_pair_table_and_their_curves_are_drawn(tmp_path: Path, no_drawing: None) -> None:
    for start, first in (("zero", 0.5), ("normal", 0.25)):
        trained = tmp_path / "heads" / "tiny" / "chained" / start
        trained.mkdir(parents=True)
        ranks = {f"{of}top{rank}": first + rank / 8 - bool(of) / 10 for rank in (1, 2, 3) for of in ("", "pair_")}
        pd.DataFrame([{"head": 2} | ranks]).to_csv(trained / "accuracy.csv", index=False)
        curve = pd.DataFrame({"step": [5, 10]} | {f"loss_{head}": [9.0, first + head] for head in (1, 2, 3)})
        curve.to_csv(trained / "curve.csv", index=False)
    paper = load_paper("tokenswift")
    inputs: Any = SimpleNamespace(
        folder=tmp_path, words=lambda part: paper.words[part], published=paper.published,
        writer=FigureWriter(tmp_path / "pages", {}),
    )  # fmt: skip
    _, table, picture, losses = heads(inputs)
    assert isinstance(table, Cells) and isinstance(picture, Picture) and isinstance(losses, Comparison)
    assert [list(row) for row in table.rows] == [
        ["tiny", "chained", "normal", "2", "37.5", "27.5", "50.0", "40.0", "62.5", "52.5"],
        ["tiny", "chained", "zero", "2", "62.5", "52.5", "75.0", "65.0", "87.5", "77.5"],
    ]
    assert [(row.of[0], row.measured) for row in losses.rows][2:4] == [
        ("tiny, normal", "3.250"),
        ("tiny, zero", "1.500"),
    ]
    drawn = pd.read_csv(tmp_path / "pages" / picture.figure.data)
    assert len(drawn) == 4 and set(drawn["start"]) == {"zero", "normal"}
