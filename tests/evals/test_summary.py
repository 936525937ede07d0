"""The summary table against numbers worked out by hand or by pandas."""

from __future__ import annotations

import random
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.evals import curves, manifest, stats, summary
from longdecode.evals.records import Provenance, Record
from longdecode.evals.store import read_records, write_records, write_table

SPREAD = summary.Spread(confidence=0.95, resamples=400, seed=0)
PROVENANCE = Provenance(
    revision="abc", dirty=True, code_hash="c", model_hash="m", data_hash="d", device="cpu (test)", dtype="float32",
    versions={"python": "3"}, started_at="2026-01-01T00:00:00+00:00",
)  # fmt: skip


def record(**changes: Any) -> Record:
    """One good sample of Full on mini_recall, with changes."""
    label = changes.get("variant", "full")
    fields: dict[str, Any] = {
        "profile": "test", "model": "tiny", "method": label, "variant": label, "params": {}, "suite": "mini_recall",
        "task": "single", "task_version": 1, "metric": "accuracy", "unit": "fraction", "higher_is_better": True,
        "data_source": "generated", "budget": "full" if label == "full" else "0.1",
        "budget_tokens": None if label == "full" else 205, "context": 2048, "batch": 4, "seed": 0, "sample_index": 0,
        "status": "ok", "provenance": PROVENANCE, "measures": {
            "kv_tokens_read": 100.0, "kv_tokens_read_sparse": 80.0, "kv_bytes_per_step": 1000.0,
            "metadata_bytes_per_step": 10.0,
        },
    }  # fmt: skip
    fields |= changes
    fields.setdefault("score", 1.0 if fields["status"] == "ok" else None)
    fields.setdefault("prompt_sha256", f"{fields['task']}-{fields['context']}-{fields['sample_index']}")
    return Record(**fields)


def cell(values: list[float], **changes: Any) -> list[Record]:
    return [record(sample_index=i, score=v, **changes) for i, v in enumerate(values)]


def rows(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame


def only(frame: pd.DataFrame, **where: Any) -> pd.Series:
    found = rows(frame, **where)
    assert len(found) == 1
    return found.iloc[0]


def test_columns_means_and_paired_differences() -> None:
    rng = np.random.default_rng(time.time_ns())
    full, quest = rng.random(20).tolist(), rng.random(20).tolist()
    mixed = cell(full) + cell(quest, variant="quest")
    random.shuffle(mixed)
    frame = summary.summarise(mixed, SPREAD)
    assert tuple(frame.columns) == summary.COLUMNS
    row = only(frame, method="quest")
    assert row["value"] == pytest.approx(np.mean(quest))
    assert row["diff_to_full"] == pytest.approx(np.mean(quest) - np.mean(full))
    assert row["low"] < row["value"] < row["high"]
    assert row["diff_low"] < row["diff_to_full"] < row["diff_high"]
    assert (row["n"], row["budget_tokens"], row["status"]) == (20, 205, "ok")
    assert (row["revision"], row["kv_bytes_per_step"], row["metadata_bytes_per_step"]) == ("abc+dirty", 1000, 10)
    reference = only(frame, method="full")
    assert pd.isna(reference["diff_to_full"]) and pd.isna(reference["p_holm"]) and pd.isna(reference["budget_tokens"])


def test_order_of_records_and_other_cells_change_nothing() -> None:
    base = cell([0.1, 0.9, 0.4, 0.3, 0.2, 0.8]) + cell([0.5, 0.2, 0.4, 0.1, 0.1, 0.7], variant="quest")
    extra = cell([1.0] * 6, task="other") + cell([0.0] * 6, variant="streaming", budget="0.5")
    first = summary.summarise(base, SPREAD)
    shuffled = [*base, *extra]
    random.shuffle(shuffled)
    second = summary.summarise(shuffled, SPREAD)
    second = rows(rows(second, task="single"), budget="0.1").reset_index(drop=True)
    pd.testing.assert_frame_equal(rows(first, budget="0.1").reset_index(drop=True), second)


def test_a_cell_that_could_not_run_is_a_hole() -> None:
    hole = record(variant="tidal", sample_index=-1, status="oom", reason="too large", score=None, prompt_sha256=None)
    frame = summary.summarise([*cell([1.0, 0.0]), hole], SPREAD)
    row = only(frame, method="tidal")
    assert (row["status"], row["n"]) == ("oom", 0)
    assert row[["value", "low", "high", "diff_to_full", "p_holm"]].isna().all()


def test_a_cell_with_one_lost_sample_has_no_value() -> None:
    lost = record(variant="quest", sample_index=-1, status="oom", score=None)
    row = only(summary.summarise([*cell([1.0, 0.0]), record(variant="quest"), lost], SPREAD), method="quest")
    assert (row["status"], row["n"]) == ("oom", 1)
    assert pd.isna(row["value"])


def test_samples_that_could_not_be_marked_are_neither_right_nor_wrong() -> None:
    quest = cell([1.0, 0.0, 1.0, 1.0], variant="quest")
    quest[1] = record(variant="quest", sample_index=1, status="timeout", score=None, reason="no verdict")
    frame = summary.summarise([*cell([1.0, 1.0, 0.0, 1.0]), *quest], SPREAD)
    row = only(frame, method="quest")
    assert (row["status"], row["n"], row["n_timeout"], row["value"]) == ("ok", 3, 1, 1.0)
    assert row["diff_to_full"] == pytest.approx(1 - 2 / 3)  # over the three samples that both have
    assert only(frame, method="full")["n_timeout"] == 0


def test_a_cell_of_timeouts_alone_is_one() -> None:
    lost = [record(variant="quest", sample_index=i, status="timeout", score=None) for i in range(3)]
    other = cell([1.0] * 3, task="other") + cell([1.0] * 3, task="other", variant="quest")
    frame = summary.summarise([*cell([1.0, 0.0, 1.0]), *lost, *other], SPREAD)
    row = only(frame, method="quest", task="single")
    assert (row["status"], row["n"], row["n_timeout"]) == ("timeout", 0, 3) and pd.isna(row["value"])
    whole = only(frame, method="quest", task="all")
    assert whole["status"] == "timeout" and pd.isna(whole["value"])
    # And Full's own timeouts leave no difference to take.
    turned = [r.model_copy(update={"variant": "full", "method": "full", "budget": "full"}) for r in lost[:1]]
    frame = summary.summarise([*turned, *cell([1.0], variant="quest"), *cell([0.0] * 2)[1:]], SPREAD)
    assert pd.isna(only(frame, method="quest")["diff_to_full"])


def test_repeats_of_a_problem_are_resampled_together() -> None:
    rng = np.random.default_rng(time.time_ns())
    solved = rng.random(12).repeat(16)
    values = (rng.random(192) < solved).astype(float).tolist()
    draws = [record(sample_index=i, score=v, prompt_sha256=f"p{i // 16}") for i, v in enumerate(values)]
    apart = [record(sample_index=i, score=v) for i, v in enumerate(values)]
    together, single = (only(summary.summarise(records, SPREAD)) for records in (draws, apart))
    assert together["value"] == single["value"] == pytest.approx(np.mean(values))
    expected = stats.mean_estimate(
        stats.Scores(np.array(values), np.arange(192) // 16, np.ones(192, dtype=np.int64)), 0.95, 400,
        stats.generator(0, "mean", "tiny", "mini_recall", 2048, 4, "full", "full", "single"),
    )  # fmt: skip
    assert (together["low"], together["high"]) == pytest.approx((expected.low, expected.high))


def test_truncation_is_a_share_where_a_task_waits_for_an_end() -> None:
    cut = [
        record(sample_index=i, score=1.0, measures={"truncated": i < 3, "accepted": i, "decode_ms": 3.0})
        for i in range(4)
    ]
    frame = summary.summarise([*cut, *cell([1.0] * 4, task="other")], SPREAD)
    assert only(frame, task="single")["truncated"] == 0.75
    assert only(frame, task="single")["accepted"] == 1.5 and "decode_ms" not in frame
    assert pd.isna(only(frame, task="other")["truncated"])


def test_holm_runs_over_the_methods_of_one_table() -> None:
    """Three methods at one budget share a family; another budget, task or context is a family of its own."""
    rng = np.random.default_rng(time.time_ns())
    full = rng.random(12)
    labels = {"a": 0.05, "b": 0.1, "c": 0.4}
    records = cell(full.tolist())
    for (label, drop), budget in product(labels.items(), ("0.1", "0.2")):
        records += cell(
            (full - drop * rng.random(12)).tolist(), variant=label, budget=budget, higher_is_better=False, unit="nats"
        )
    frame = summary.summarise(records, SPREAD)
    for budget in ("0.1", "0.2"):
        raw = [
            stats.paired_difference(
                [(_scores(records, label, budget), _scores(records, "full", "full"))], 0.95, 400,
                stats.generator(0, "difference", "tiny", "mini_recall", 2048, 4, budget, label, "single"),
            ).p_value
            for label in labels
        ]  # fmt: skip
        found = rows(frame, budget=budget).sort_values("method")["p_holm"]
        assert found.tolist() == pytest.approx(stats.holm(raw))


def _scores(records: list[Record], label: str, budget: str) -> stats.Scores:
    values = np.array([r.score for r in records if (r.variant, r.budget) == (label, budget)])
    return stats.Scores(values, np.arange(len(values)))


def test_suite_mean_weighs_tasks_equally() -> None:
    rng = np.random.default_rng(time.time_ns())
    full = {"single": rng.random(30).tolist(), "multi": rng.random(10).tolist()}
    quest = {"single": rng.random(30).tolist(), "multi": rng.random(10).tolist()}
    records = [r for task in full for r in cell(full[task], task=task) + cell(quest[task], task=task, variant="quest")]
    row = only(summary.summarise(records, SPREAD), task="all", method="quest")
    means = [np.mean(quest[task]) for task in quest]
    assert row["value"] == pytest.approx(np.mean(means))
    assert row["diff_to_full"] == pytest.approx(np.mean(means) - np.mean([np.mean(v) for v in full.values()]))
    assert row["n"] == 40 and row["low"] < row["value"] < row["high"]


def test_suite_mean_takes_the_tasks_that_full_could_do() -> None:
    def unfit(label: str) -> Record:
        return record(task="long", variant=label, sample_index=-1, status="unsupported", score=None, prompt_sha256=None)

    records = [unfit("full"), unfit("quest")]
    for task, label in product(("single", "multi"), ("full", "quest")):
        records += cell([0.5, 1.0, 0.0, 1.0], task=task, variant=label)
    row = only(summary.summarise(records, SPREAD), task="all", method="quest")
    assert (row["status"], row["value"]) == ("ok", 0.625)


def test_suite_mean_with_a_missing_task_is_a_hole() -> None:
    hole = record(task="multi", variant="quest", sample_index=-1, status="oom", score=None, prompt_sha256=None)
    records = [*cell([1.0] * 4), *cell([1.0] * 4, task="multi"), *cell([1.0] * 4, variant="quest")]
    oom = only(summary.summarise([*records, hole], SPREAD), task="all", method="quest")
    absent = only(summary.summarise(records, SPREAD), task="all", method="quest")
    assert (oom["status"], absent["status"]) == ("oom", "unsupported")
    assert pd.isna(oom["value"]) and pd.isna(absent["value"])


def test_no_suite_mean_over_different_units() -> None:
    records = cell([1.0] * 4) + cell([2.0] * 4, task="loss", unit="nats", higher_is_better=False)
    assert rows(summary.summarise(records, SPREAD), task="all").empty


def test_losses_are_not_proportions() -> None:
    frame = summary.summarise(cell([0.0] * 8, unit="nats", higher_is_better=False), SPREAD)
    assert only(frame, method="full")["high"] == 0.0


def test_perfect_scores_made_of_questions_are_bounded_by_their_number() -> None:
    asked = cell([1.0] * 8, parts=[1.0] * 15)
    row = only(summary.summarise(asked, SPREAD), method="full")
    assert row["low"] == pytest.approx(stats.wilson_interval(1.0, 120, 0.95)[0])
    unmade = cell([1.0] * 8, parts=[1.0, 0.0])
    assert only(summary.summarise(unmade, SPREAD), method="full")["low"] == pytest.approx(
        stats.wilson_interval(1.0, 8, 0.95)[0]
    )


def test_repeats_of_a_prompt_are_one_problem() -> None:
    values = np.random.default_rng(time.time_ns()).normal(size=12)
    once = cell(values.tolist(), higher_is_better=False, unit="nats")
    thrice = [r.model_copy(update={"seed": seed}) for seed in range(3) for r in once]
    one = only(summary.summarise(once, SPREAD), method="full")
    many = only(summary.summarise(thrice, SPREAD), method="full")
    assert many["n"] == 36
    assert (many["low"], many["high"]) == pytest.approx((one["low"], one["high"]))


def test_contradicting_records_are_refused() -> None:
    with pytest.raises(summary.SummaryError, match="twice"):
        summary.summarise([record(), record()], SPREAD)
    with pytest.raises(summary.SummaryError, match="another prompt"):
        summary.summarise([record(), record(variant="quest", prompt_sha256="else")], SPREAD)
    with pytest.raises(summary.SummaryError, match="shares no sample"):
        summary.summarise([record(), record(variant="quest", sample_index=9)], SPREAD)


def test_curves_average_parts_index_by_index() -> None:
    parts = [[1.0, 1.0, 0.0], [1.0, 0.0], [1.0, 1.0, 1.0]]
    asked = [record(sample_index=i, parts=p, score=float(np.mean(p))) for i, p in enumerate(parts)]
    lost = record(sample_index=5, parts=[0.0, 0.0], status="timeout", score=None)
    text = [
        record(sample_index=i, task="book", parts=[3.0 + i, 2.0], higher_is_better=False, unit="nats", score=2.5)
        for i in range(4)
    ]
    found = curves.along_generation([*asked, lost, *text], 0.95)
    assert found[["index", "n", "value"]].to_numpy().tolist() == [
        [1, 3, 1.0],
        [2, 3, pytest.approx(2 / 3)],
        [3, 2, 0.5],
    ]
    assert (found["low"].iloc[2], found["high"].iloc[2]) == pytest.approx(stats.wilson_interval(0.5, 2, 0.95))
    loss = curves.loss_by_position([*asked, *text], 0.95)
    assert loss[["index", "n", "value"]].to_numpy().tolist() == [[1, 4, 4.5], [2, 4, 2.0]]
    assert loss["high"].iloc[0] - 4.5 == pytest.approx(3.182446 * np.std([3, 4, 5, 6], ddof=1) / 2)


def test_windows_of_one_book_are_one_value_of_a_curve() -> None:
    """Two books of four windows: Student's interval of two book means, 12.7062 * |a - b| / 2, not of eight windows."""
    rows = [
        record(
            sample_index=i, task="fidelity_forced", parts=[float(i // 4) + 0.1 * (i % 4)], score=1.0, unit="nats/token",
            higher_is_better=False,
        )
        for i in range(8)
    ]  # fmt: skip
    (row,) = curves.loss_by_position(rows, 0.95).to_dict("records")
    assert (row["n"], row["value"]) == (8, pytest.approx(0.65))
    assert row["high"] - row["value"] == pytest.approx(12.7062 * 0.5, rel=1e-4)


def test_csv_is_written_whole(tmp_path: Path) -> None:
    frame = summary.summarise(cell([1.0, 0.25]) + cell([0.5, 0.5], variant="quest"), SPREAD)
    target = tmp_path / "deep" / "summary.csv"
    write_table(target, frame)
    assert [path.name for path in target.parent.iterdir()] == ["summary.csv"]
    again = pd.read_csv(target)
    assert tuple(again.columns) == summary.COLUMNS
    assert again["value"].tolist() == pytest.approx(frame["value"].tolist())


CONFIG = """
profile: test
models: {tiny: {path: nowhere}}
methods: {full: {}, quest: {}}
budgets: [0.1]
suites: {mini_longgen: {contexts: [2048], samples: 12}}
"""


def test_write_summary_reads_parquet_and_writes_table_and_curves(tmp_path: Path) -> None:
    rng = np.random.default_rng(time.time_ns())
    paths = []
    for label in ("full", "quest"):
        marks = rng.integers(0, 2, size=(12, 15)).astype(float)
        rows = [
            record(
                variant=label,
                suite="mini_longgen",
                task="mini_longgen_15",
                sample_index=i,
                score=m.mean(),
                parts=m.tolist(),
            )
            for i, m in enumerate(marks)
        ]
        paths.append(tmp_path / "records" / "tiny" / label / "mini_longgen.parquet")
        write_records(paths[-1], rows, Record)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    manifest.seal(tmp_path, paths)
    summary.write_summary(config, paths, tmp_path / "summary.csv")
    found = pd.read_csv(tmp_path / "summary.csv")
    assert found["method"].tolist() == ["full", "quest"] and (found["status"] == "ok").all()
    wide = summary.summarise([r for path in paths for r in read_records(path, Record)], SPREAD)
    narrower = (found["high"] - found["low"]).to_numpy() < (wide["high"] - wide["low"]).to_numpy()
    assert narrower.all(), "the configuration's confidence of 80 % must reach the intervals"
    along = pd.read_parquet(tmp_path / "along_generation.parquet")
    assert along["index"].tolist() == [*range(1, 16)] * 2 and (along["n"] == 12).all()
    assert pd.read_parquet(tmp_path / "loss_by_position.parquet").empty
    before = (tmp_path / "summary.csv").read_bytes()
    summary.write_summary(config, paths[::-1], tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_bytes() == before
