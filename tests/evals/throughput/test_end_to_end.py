"""Whole throughput jobs on a CPU: every cell ends as a record, a killed job resumes, holes are statuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from longdecode.engine.errors import ConfigError, GateError
from longdecode.evals import gate
from longdecode.evals.records import SpeedRecord
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.store import journal_path, read_records
from longdecode.evals.throughput import cli, decode, kernels
from longdecode.evals.throughput.measure import measure_speed
from longdecode.evals.throughput.summary import write_speed_summary

SPEED = {
    "kernels": {
        "shape": "miniature-shape",
        "ops": [
            "decode_attention",
            "sparse_decode_attention",
            "topk_select",
            "add_rms_norm",
            "hybrid_attention",
            "topk_select_into",
            "decode_attention_rows",
        ],
        "contexts": [256],
        "batches": [1],
        "budgets": [64, 256],
        "rounds": 2,
        "rows": {"contexts": [256], "batches": [1], "causal": [2], "tree": [5]},
        "hybrid": {
            "contexts": [256],
            "batches": [2],
            "budgets": [64],
            "full_heads": [0, 2],
            "lengths": ["full", "random"],
        },
    },
    "decode": {
        "tiny": {
            "methods": ["full", "streaming", "split", "free_selection"],
            "contexts": [128, 4096],
            "batches": [2],
            "budgets": [32],
            "rounds": 2,
            "steps": 2,
            "prefill_contexts": [128],
            "hf_contexts": [128],
            "hf_batches": [2],
        }
    },
}


COMPANIONS = ("growth", "breakeven", "breakdown", "correction", "over_baselines", "speculation")


@pytest.fixture(autouse=True)
def conforming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every method through the gate; methods' own tests run the conformance suite."""
    monkeypatch.setattr(gate, "check_method", lambda *given: None)


@pytest.fixture
def speed_values(config_values: dict[str, Any]) -> dict[str, Any]:
    """The small configuration of the evals room with throughput tests."""
    split = {"method": "duo", "params": {"roles": "spread"}, "by_model": {"tiny": {"retrieval_heads": 1}}}
    return config_values | {"throughput": SPEED, "methods": config_values["methods"] | {"split": split}}


@pytest.fixture
def run(speed_values: dict[str, Any]) -> RunConfig:
    """That configuration, checked."""
    return build_run_config(speed_values, "c")


def test_a_decode_job(run: RunConfig, tmp_path: Path) -> None:
    output = tmp_path / "speed" / "tiny.parquet"
    measure_speed(run, "tiny", output)
    records = read_records(output, SpeedRecord)
    by_cell = {(record.variant, record.stage): record for record in records if record.context == 128}
    assert set(by_cell) == {
        ("full", "step"), ("full", "setup"), ("full", "prefill"), ("streaming", "step"), ("streaming", "setup"),
        ("split", "step"), ("split", "setup"), ("free_selection", "step"), ("no_attention", "no_attention"),
        ("projections", "projections"),
        ("hf_full", "step"), ("hf_full_static", "step"),
    }  # fmt: skip
    assert {record.status for record in by_cell.values()} == {"ok"}, [record.reason for record in records]
    for (_, stage), record in by_cell.items():
        paired = stage not in ("setup", "prefill")
        assert (record.reference == "full") == paired
        assert all(sample.us > 0 and (sample.reference_us is not None) == paired for sample in record.samples)
    full, streaming = by_cell["full", "step"], by_cell["streaming", "step"]
    assert full.weights == "checkpoint" and len(full.samples) == 2
    kv_bytes = 2 * 2 * 2 * 8 * 4  # K and V, two layers, two heads of eight, float32
    assert full.bytes_min is not None and streaming.bytes_min is not None
    assert full.bytes_min - streaming.bytes_min == 2 * (128 - 32) * kv_bytes
    assert full.expected_bytes is not None and streaming.expected_bytes is not None
    assert full.expected_bytes - streaming.expected_bytes == 2 * (128 - 32) * kv_bytes
    split = by_cell["split", "step"]
    assert split.params == {"roles": "spread", "retrieval_heads": 1}
    assert split.bytes_min is not None and split.expected_bytes is not None
    # Three of the four KV heads keep 32 tokens.
    assert full.bytes_min - split.bytes_min == 2 * (128 - 32) * kv_bytes * 3 // 4
    assert full.expected_bytes - split.expected_bytes == 2 * (128 - 32) * kv_bytes * 3 // 4
    over = [record for record in records if record.context == 4096]
    assert over and all(record.status == "unsupported" and "1024" in str(record.reason) for record in over)


def test_a_kernels_job(run: RunConfig, tmp_path: Path) -> None:
    output = tmp_path / "kernels.parquet"
    measure_speed(run, "kernels", output)
    records = {
        (record.method, record.variant, record.budget): record
        for record in read_records(output, SpeedRecord)
        if "full_heads" not in record.params
    }
    ours = records["decode_attention", "longdecode", "full"]
    theirs = records["decode_attention", "torch_flash", "full"]
    assert (ours.reference, theirs.reference) == ("torch_flash", "longdecode")
    assert [sample.us for sample in ours.samples] == [sample.reference_us for sample in theirs.samples]
    missing = records["decode_attention", "flashinfer", "full"]
    assert missing.status == "unsupported" and "FlashInfer needs a CUDA device" in str(missing.reason)
    assert records["sparse_decode_attention", "longdecode", "64"].status == "ok"
    covered = records["sparse_decode_attention", "longdecode", "256"]
    assert covered.status == "unsupported" and "256" in str(covered.reason)
    assert {label for subject, label, _ in records if subject == "read_bandwidth"} == {
        "torch_sum", "torch_flash", "longdecode", "longdecode_linear",
    }  # fmt: skip
    hybrid = {
        (record.method, record.variant, record.params["full_heads"]): record
        for record in read_records(output, SpeedRecord)
        if "full_heads" in record.params
    }
    for heads in (0, 2):
        sparse, flash = (hybrid["hybrid_attention", label, heads] for label in ("longdecode", "torch_flash"))
        assert (sparse.reference, flash.reference) == ("torch_flash", "longdecode")
        # Keys and values of 4 heads over 256 tokens, float32, batch 2; a list is one block.
        assert flash.bytes_min == 2 * 4 * 256 * 2 * 32 * 4
        assert sparse.bytes_min == 2 * (heads * 256 + (4 - heads) * 64) * 2 * 32 * 4 + 2 * (4 - heads) * 8
        assert hybrid["hybrid_attention_random", "longdecode", heads].reference == "longdecode_dense"
    for subject, params in (("rows2", {"rows": 2, "mask": "causal"}), ("rows5_tree", {"rows": 5, "mask": "tree"})):
        several = records[f"decode_attention_{subject}", "longdecode", "full"]
        assert several.reference == "longdecode_one_row" and params.items() <= several.params.items()
    chosen = hybrid["topk_select_into", "longdecode", 2]
    assert chosen.status == "ok" and chosen.params == {"full_heads": 2, "k": 1, "entries": 4, "sets": 1, "cold": False}
    assert ("topk_select_into", "longdecode", 0) not in hybrid


def test_a_killed_job_resumes_at_its_next_record(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "speed" / "tiny.parquet"
    timed = decode.DecodeBench._gate
    count = 0

    def killed(self: Any, cell: Any) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        timed(self, cell)

    monkeypatch.setattr(decode.DecodeBench, "_gate", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_speed(run, "tiny", output)
    monkeypatch.setattr(decode.DecodeBench, "_gate", timed)
    assert not output.exists()
    lines = journal_path(output).read_text().splitlines()
    kept = [SpeedRecord.model_validate(fields) for line in lines for fields in json.loads(line.partition(" ")[2])]
    assert len(kept) == 3
    fresh = measure_speed(run, "tiny", output)
    assert read_records(output, SpeedRecord)[:3] == kept
    assert len(fresh) == len(read_records(output, SpeedRecord)) - 3
    assert measure_speed(run, "tiny", output) == []


def test_an_op_that_fails_its_gate_is_not_timed(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(case: Any) -> None:
        if case.subject == "topk_select":
            raise GateError("other indices than its definition")

    monkeypatch.setattr(kernels, "_gate", wrong)
    output = tmp_path / "kernels.parquet"
    measure_speed(run, "kernels", output)
    records = [record for record in read_records(output, SpeedRecord) if record.method == "topk_select"]
    failed = [record for record in records if record.budget == "64"]
    assert len(failed) == 3 and all(record.status == "failed_gate" and not record.samples for record in failed)


def test_where_full_does_not_fit_the_others_are_timed_alone(
    run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from longdecode.engine.errors import DeviceMemoryError

    def refuse(shape: object) -> None:
        raise DeviceMemoryError("needs more than there is")

    monkeypatch.setattr(decode, "DenseCache", refuse)
    output = tmp_path / "tiny.parquet"
    measure_speed(run, "tiny", output, choose=lambda cell: cell.subject != "hf_full")
    records = [record for record in read_records(output, SpeedRecord) if record.context == 128]
    own = {(record.variant, record.stage) for record in records if record.status == "ok"}
    assert own == {
        ("streaming", "step"), ("streaming", "setup"), ("split", "step"), ("split", "setup"),
        ("projections", "projections"),
    }  # fmt: skip
    for record in records:
        if record.status == "ok":
            assert record.reference is None and all(sample.reference_us is None for sample in record.samples)
            alone = record.stage == "setup" or "no ratio over full: needs more" in str(record.reason)
            assert alone, (record.stage, record.reason)
        else:
            assert record.status == "oom" and record.reason == "needs more than there is"


def test_speculation_is_timed_in_stages(speed_values: dict[str, Any], tmp_path: Path) -> None:
    values = copy.deepcopy(speed_values)
    values["methods"]["magic"] = {"method": "speculate", "params": {"draft_tokens": 3}}
    values["throughput"]["decode"]["tiny"] = {
        "methods": ["full", "magic"], "contexts": [128], "batches": [2], "budgets": [64], "rounds": 2, "steps": 1,
        "stages": False, "forward_contexts": [128], "forward_rows": 5, "only": {"magic": {"budgets": [32]}},
    }  # fmt: skip
    output, run = tmp_path / "speed" / "tiny.parquet", build_run_config(values, "c")
    measure_speed(run, "tiny", output)
    records = {(record.variant, record.stage): record for record in read_records(output, SpeedRecord)}
    stages = ("speculative_step", "draft", "verify", "keep")
    assert set(records) == {
        ("full", "step"), ("full", "setup"), ("full", "forward_rows"), ("magic", "setup"),
        *(("magic", stage) for stage in stages),
    }  # fmt: skip
    assert {record.status for record in records.values()} == {"ok"}, [record.reason for record in records.values()]
    whole, draft, verify, keep = (records["magic", stage] for stage in stages)
    assert whole.budget_tokens == 32 and whole.params == {"draft_tokens": 3}
    assert whole.bytes_min == (draft.bytes_min or 0) + (verify.bytes_min or 0) and keep.bytes_min is None
    full, rows = records["full", "step"], records["full", "forward_rows"]
    assert verify.bytes_min == rows.bytes_min == full.bytes_min and rows.params == {"rows": 5, "mask": "tree"}
    write_speed_summary([output], tmp_path / "speed.csv", run)
    model = pd.read_csv(tmp_path / "speculation.csv")
    assert set(model["label"]) == {"magic"} and model["tokens_per_step"].max() == 4


def test_by_hand(speed_values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(speed_values))
    folder, table = tmp_path / "out" / "speed", tmp_path / "out" / "speed.csv"
    common = ["--config", str(path), "--output", str(folder), "--device", "cpu", "--leased"]
    chosen = ["--jobs", "tiny", "--stages", "step", "--subjects", "streaming", "--contexts", "128"]
    assert cli.main([*common, *chosen, "--rounds", "3", "--summary", str(table)]) == 0
    (record,) = read_records(folder / "tiny.parquet", SpeedRecord)
    assert (record.variant, record.stage, len(record.samples)) == ("streaming", "step", 3)
    assert "streaming" in capsys.readouterr().out
    assert pd.read_csv(table)["label"].tolist() == ["streaming"]
    assert all((table.parent / f"{name}.csv").exists() for name in COMPANIONS)
    assert cli.main([*common, "--jobs", "tinny"]) == 1
    assert "nearest valid name: 'tiny'" in capsys.readouterr().err


def test_an_unknown_job_and_a_run_without_tests_are_refused(run: RunConfig, config_values: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nearest valid name: 'kernels'"):
        measure_speed(run, "kernel", tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="throughput"):
        measure_speed(build_run_config(config_values, "c"), "kernels", tmp_path / "x.parquet")
