"""Whole throughput jobs on a CPU: every cell ends as a record, a killed job resumes, holes are statuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from longdecode.analysis.speed import main
from longdecode.engine.errors import ConfigError, DeviceMemoryError, GateError
from longdecode.evals import gate
from longdecode.evals.records import SpeedRecord, op_sizes_text
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.store import journal_path, read_records
from longdecode.evals.throughput import decode, kernels
from longdecode.evals.throughput.harness import Bench
from longdecode.evals.throughput.measure import measure_speed

KERNELS = {
    "bench": "kernels", "model": "miniature-shape", "contexts": [256], "budgets": [64, 256], "rounds": 2,
    "ops": ["decode_attention", "sparse_decode_attention", "topk_select", "linear_o"],
}  # fmt: skip
STEPS = {
    "bench": "decode", "model": "tiny", "variants": ["full", "streaming", "split"], "contexts": [128, 4096],
    "batches": [2], "budgets": [32], "rounds": 2, "steps": 2,
}  # fmt: skip
AT_128 = {"model": "tiny", "contexts": [128], "batches": [2], "rounds": 2}
GRIDS = [
    KERNELS, KERNELS | {"ops": ["hybrid_attention"], "batches": [2], "budgets": [64], "full_heads": [0, 2]},
    KERNELS | {"ops": ["hybrid_attention"], "batches": [2], "budgets": [64], "full_heads": [1], "kv_lengths": "mixed"},
    KERNELS | {"ops": ["decode_attention_rows"], "rows": [2]},
    KERNELS | {"ops": ["decode_attention_rows"], "rows": [5], "mask": "tree"}, STEPS, {"bench": "prefill", **AT_128},
    {"bench": "rows", "rows": [2, 5], **AT_128}, {"bench": "hf_full", **AT_128},
]  # fmt: skip


@pytest.fixture(autouse=True)
def conforming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every method through the gate; methods' own tests run the conformance suite."""
    monkeypatch.setattr(gate, "check_method", lambda *given: None)


@pytest.fixture
def speed_values(config_values: dict[str, Any]) -> dict[str, Any]:
    """The small configuration of the evals room with throughput tests."""
    split = {"method": "duo", "params": {"roles": "spread"}, "by_model": {"tiny": {"retrieval_heads": 1}}}
    return config_values | {"throughput": copy.deepcopy(GRIDS), "methods": config_values["methods"] | {"split": split}}


@pytest.fixture
def run(speed_values: dict[str, Any]) -> RunConfig:
    """That configuration, checked."""
    return build_run_config(speed_values, "c")


def timed(run: RunConfig, job: str, folder: Path, **how: Any) -> list[SpeedRecord]:
    """Time a job and read its records."""
    measure_speed(run, job, folder / f"{job}.parquet", **how)
    return read_records(folder / f"{job}.parquet", SpeedRecord)


def test_a_decode_job(run: RunConfig, tmp_path: Path) -> None:
    records = timed(run, "tiny", tmp_path)
    by_cell = {(r.variant, r.stage, r.params.get("rows")): r for r in records if r.context == 128}
    assert set(by_cell) == {
        ("full", "step", None), ("full", "setup", None), ("full", "prefill", None), ("streaming", "step", None),
        ("streaming", "setup", None), ("split", "step", None), ("split", "setup", None),
        ("hf_full", "step", None), ("full", "forward_rows", 2), ("full", "forward_rows", 5),
    }  # fmt: skip
    assert {record.status for record in by_cell.values()} == {"ok"}, [record.reason for record in records]
    for (_, stage, _), record in by_cell.items():
        paired = stage not in ("setup", "prefill")
        assert (record.reference == "full") == paired and len(record.samples) == 2
        assert all(sample.us > 0 and (sample.reference_us is not None) == paired for sample in record.samples)
    full, streaming, split = (by_cell[name, "step", None] for name in ("full", "streaming", "split"))
    assert full.weights == "checkpoint" and full.method == "full" and split.method == "duo"
    kv_bytes = 2 * 2 * 2 * 8 * 4  # K and V, two layers, two heads of eight, float32
    assert full.bytes_min is not None and streaming.bytes_min is not None and split.bytes_min is not None
    assert full.expected_bytes is not None and streaming.expected_bytes is not None and split.expected_bytes is not None
    assert full.bytes_min - streaming.bytes_min == 2 * (128 - 32) * kv_bytes
    assert full.expected_bytes - streaming.expected_bytes == 2 * (128 - 32) * kv_bytes
    assert split.params == {"roles": "spread", "retrieval_heads": 1}
    # Three of the four KV heads keep 32 tokens.
    assert full.bytes_min - split.bytes_min == 2 * (128 - 32) * kv_bytes * 3 // 4
    assert full.expected_bytes - split.expected_bytes == 2 * (128 - 32) * kv_bytes * 3 // 4
    whole = [by_cell["full", "forward_rows", rows] for rows in (2, 5)] + [by_cell["hf_full", "step", None]]
    assert {record.bytes_min for record in whole} == {full.bytes_min}
    over = [record for record in records if record.context == 4096]
    assert over and all(record.status == "unsupported" and "1024" in str(record.reason) for record in over)


def test_a_kernels_job(run: RunConfig, tmp_path: Path) -> None:
    records = {(r.method, r.variant, r.budget, r.params.get("full_heads")): r for r in timed(run, "kernels", tmp_path)}
    ours = records["decode_attention", "longdecode", "full", None]
    theirs = records["decode_attention", "torch_flash", "full", None]
    assert (ours.reference, theirs.reference) == ("torch_flash", "longdecode")
    missing = records["decode_attention", "flashinfer", "full", None]
    assert missing.status == "unsupported" and "FlashInfer needs a CUDA device" in str(missing.reason)
    assert records["sparse_decode_attention", "longdecode", "64", None].status == "ok"
    covered = records["sparse_decode_attention", "longdecode", "256", None]
    assert covered.status == "unsupported" and "256" in str(covered.reason)
    assert {variant for method, variant, *_ in records if method == "read_bandwidth"} == {
        "torch_sum", "torch_flash", "longdecode", "longdecode_linear",
    }  # fmt: skip
    for heads in (0, 2):
        sparse, flash = (records["hybrid_attention", v, "64", heads] for v in ("longdecode", "torch_flash"))
        assert (sparse.reference, flash.reference) == ("torch_flash", "longdecode")
        # Keys and values of 4 heads over 256 tokens, float32, batch 2; a list is one block.
        assert flash.bytes_min == 2 * 4 * 256 * 2 * 32 * 4
        assert sparse.bytes_min == 2 * (heads * 256 + (4 - heads) * 64) * 2 * 32 * 4 + 2 * (4 - heads) * 8
    mixed = records["hybrid_attention", "longdecode", "64", 1]
    assert op_sizes_text("kernel", mixed.params) == "full_heads=1 kv_lengths=mixed" and mixed.reference is None
    for rows, name in ((2, "decode_attention_rows2"), (5, "decode_attention_rows5_tree")):
        several = records[name, "longdecode", "full", None]
        mask = "tree" if "tree" in name else "causal"
        assert several.params == {"rows": rows, "mask": mask, "sets": 1, "cold": False}
        assert several.reference == (None if mask == "tree" else "torch_flash")


def test_a_killed_job_resumes_at_its_record(run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "speed" / "tiny.parquet"
    once, count = Bench._timed, 0

    def killed(self: Any, *given: Any) -> SpeedRecord:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return once(self, *given)

    monkeypatch.setattr(Bench, "_timed", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_speed(run, "tiny", output)
    assert not output.exists()
    lines = journal_path(output).read_text().splitlines()
    kept = [SpeedRecord.model_validate(fields) for line in lines for fields in json.loads(line.partition(" ")[2])]
    assert len(kept) == 3
    monkeypatch.setattr(Bench, "_timed", once)
    fresh = measure_speed(run, "tiny", output)
    total = read_records(output, SpeedRecord)
    assert total[:3] == kept and len(fresh) == len(total) - 3 and measure_speed(run, "tiny", output) == []


def test_a_change_of_rounds_times_everything_anew(speed_values: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "kernels.parquet"
    speed_values["throughput"] = [KERNELS | {"ops": ["linear_o"]}]
    first = measure_speed(build_run_config(speed_values, "c"), "kernels", output)
    speed_values["throughput"] = [KERNELS | {"ops": ["linear_o"], "rounds": 3}]
    again = measure_speed(build_run_config(speed_values, "c"), "kernels", output)
    assert len(again) == len(first) and {len(record.samples) for record in again} == {3}


@pytest.mark.parametrize("kind", ["ours", "peer"])
def test_a_failed_op_is_not_timed(run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """An op that fails its gate."""

    def wrong(*given: Any) -> None:
        raise GateError("differs from its definition")

    monkeypatch.setattr(kernels.Op, "gate" if kind == "ours" else "require_same", wrong)
    found = timed(run, "kernels", tmp_path, choose=lambda cell: cell.method == "topk_select")
    records = {r.variant: r for r in found if r.budget == "64"}
    for variant in ("longdecode", "torch_topk") if kind == "ours" else ("torch_topk",):
        assert records[variant].status == "failed_gate" and not records[variant].samples
    if kind == "peer":
        assert records["longdecode"].status == "ok" and records["longdecode"].reference is None


def test_without_full_others_are_timed_alone(run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full does not fit the device."""

    def refuse(shape: object) -> None:
        raise DeviceMemoryError("needs more than there is")

    monkeypatch.setattr(decode, "DenseCache", refuse)
    found = timed(run, "tiny", tmp_path, choose=lambda cell: cell.method != "hf_full")
    records = [record for record in found if record.context == 128]
    assert {(record.variant, record.stage) for record in records if record.status == "ok"} == {
        ("streaming", "step"), ("streaming", "setup"), ("split", "step"), ("split", "setup"),
    }  # fmt: skip
    for record in records:
        if record.status == "ok":
            assert record.reference is None and all(sample.reference_us is None for sample in record.samples)
            alone = record.stage == "setup" or "no ratio over full: needs more" in str(record.reason)
            assert alone, (record.stage, record.reason)
        else:
            assert record.status == "oom" and record.reason == "needs more than there is"


def test_speculation_is_timed_in_stages(speed_values: dict[str, Any], tmp_path: Path) -> None:
    speed_values["methods"]["magic"] = {"method": "speculate", "params": {"draft_tokens": 3}}
    speed_values["throughput"] = [STEPS | {"variants": ["magic"], "contexts": [128]}]
    found = timed(build_run_config(speed_values, "c"), "tiny", tmp_path)
    records = {(record.variant, record.stage): record for record in found}
    stages = ("speculative_step", "draft", "verify", "keep")
    others = {("full", "step"), ("full", "setup"), ("magic", "setup")}
    assert set(records) == others | {("magic", stage) for stage in stages}
    assert {record.status for record in records.values()} == {"ok"}, [record.reason for record in records.values()]
    whole, draft, verify, keep = (records["magic", stage] for stage in stages)
    assert whole.budget_tokens == 32 and whole.params == {"draft_tokens": 3}
    assert whole.bytes_min == (draft.bytes_min or 0) + (verify.bytes_min or 0) and keep.bytes_min is None
    assert verify.bytes_min == records["full", "step"].bytes_min


def test_a_correction_says_what_it_is(speed_values: dict[str, Any], tmp_path: Path) -> None:
    params = {"roles": "spread", "retrieval_heads": 2, "correction": "dense_step"}
    speed_values["methods"]["fixed"] = {"method": "lychee", "params": params}
    speed_values["throughput"] = [STEPS | {"variants": ["fixed"], "contexts": [128], "budgets": [64]}]
    run = build_run_config(speed_values, "c")
    records = {r.stage: r for r in timed(run, "tiny", tmp_path, choose=lambda cell: cell.variant == "fixed")}
    assert records["correction"].status == "ok", records["correction"].reason
    assert records["correction"].params["correction"] == "dense_step"
    assert records["correction"].params["correction_period"] >= 1


def test_by_hand(speed_values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(speed_values))
    common = ["--config", str(path), "--output", str(tmp_path / "speed")]
    main([*common, "--jobs", "tiny", "--stages", "step", "--variants", "streaming", "--contexts", "128"])
    (record,) = read_records(tmp_path / "speed" / "tiny.parquet", SpeedRecord)
    assert (record.variant, record.stage, len(record.samples)) == ("streaming", "step", 2)
    assert "streaming" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="nearest valid name: 'tiny'"):
        main([*common, "--jobs", "tinny"])


def test_a_run_without_tests_is_refused(config_values: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="throughput"):
        measure_speed(build_run_config(config_values, "c"), "kernels", tmp_path / "x.parquet")
