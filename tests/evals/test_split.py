"""A model split over two processes: records as of one, statuses, failures of a rank, and what refuses the key."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import ConfigError
from longdecode.evals.config_values import merged
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.plan import Plan
from longdecode.evals.preflight import check
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config, load_run_config
from longdecode.evals.store import read_records
from longdecode.evals.sweep import RUNTIME_GB, kept_bytes, piece_bytes, places_of, planned, size_of
from longdecode.evals.tuning import sweep
from longdecode.starting import Choices, write_config

Values = dict[str, Any]


@pytest.fixture
def split(config_values: Values) -> Values:
    """The small configuration, its model over two processes; a CPU computes in float32."""
    suite = {"contexts": [256], "samples": 3, "batch": 2, "tasks": ["mini_recall_two_hop"], "refill": True}
    own = {"quest": {"params": {"page_size": 8, "dense_layers": 1}}, "duo": {"params": {"retrieval_heads": 3}}}
    return config_values | {
        "models": {"tiny": config_values["models"]["tiny"] | {"gpus": 2}}, "budgets": [0.5],
        "methods": {"full": {}, "streaming": {}, **own, "h2o": {}}, "suites": {"mini_recall": suite},
        "tuning": {"contexts": [256], "samples": 2, "tasks": ["tuning_story"]},
    }  # fmt: skip


def scored(values: Values, folder: Path) -> dict[str, list[Record]]:
    """Records by variant of rows that are filled again, then of batches that are compared with Full's."""
    run = build_run_config(values, "split.yaml")
    outputs = {name: folder / "records" / "tiny" / name / "mini_recall.parquet" for name in run.methods}
    evaluate_suite(run, "tiny", "mini_recall", outputs)
    batches = sweep(run, "tiny", run.methods)
    return {name: read_records(path, Record) + batches[name] for name, path in outputs.items()}


def test_a_split_model_has_the_records_of_a_whole_one(split: Values, gate: list[Any], tmp_path: Path) -> None:
    """Numbers to the rounding of another order of sums; h2o, whose heads depend on each other, is unsupported."""
    found = scored(split, tmp_path / "split")
    split["models"]["tiny"].pop("gpus")
    whole = scored(split, tmp_path / "whole")
    assert {(r.status, r.sample_index) for r in found.pop("h2o")} == {("unsupported", -1)}
    assert {r.status for r in whole.pop("h2o")} == {"ok"}
    for name, records in whole.items():
        for here, one in zip(found[name], records, strict=True):
            told = [(r.task, r.sample_index, r.status, r.output_sha256) for r in (here, one)]
            assert told[0] == told[1] and one.status == "ok" and here.score == pytest.approx(one.score, abs=1e-3)
            assert here.provenance.fingerprint != one.provenance.fingerprint
            keys = one.measures.keys() - {"prefill_ms", "decode_ms"}
            assert [here.measures[key] for key in keys] == pytest.approx([one.measures[key] for key in keys], abs=1e-3)


def test_a_split_model_takes_its_gpus_and_a_part_of_the_memory_of_each(split: Values, tmp_path: Path) -> None:
    split["device"] = "cuda"
    run, job = build_run_config(split, "split.yaml"), SimpleNamespace(model="tiny")
    assert (Plan(run, tmp_path, on_cluster=lambda: True).gpus(job), Plan(run, tmp_path).gpus()) == (2, 1)
    assert "split: a job of tiny takes 2 GPUs; GB a job are those of one" in planned([run])
    split["models"]["tiny"]["gpus"] = 1
    whole = build_run_config(split, "split.yaml")
    (of_run,), (of_whole,) = places_of(run), places_of(whole)
    weights = size_of(run.models["tiny"].path).weights
    assert (of_run[2] + weights / 2, 2 * of_run[3], of_run[4]) == of_whole[2:]
    kept = [kept_bytes(one, "tiny", "streaming", 256, one.budgets) for one in (run, whole)]
    assert 2 * kept[0] == kept[1] > 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"throughput": [{"bench": "decode", "model": "tiny", "contexts": [256]}]},
            "model: tiny is split",
        ),
        ({"overlap": {"tiny": [256]}}, "overlap: tiny is split over 2 GPUs, to be scored and tuned alone"),
        ({"device": "cuda:0"}, "device: is 'cuda:0', one GPU; tiny is split over several"),
        ({"models": {"tiny": {"gpus": 3}}}, "tiny: gpus = 3: the model's 2 KV heads cannot be divided by it"),
    ],
)
def test_what_cannot_use_a_split_model_refuses_it(split: Values, change: Values, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(build_run_config(merged(split, change), "split.yaml"), device=False)


def test_a_model_that_one_gpu_does_not_hold_is_split_by_init(
    byte_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(byte_checkpoint)
    need = 2 * config.parameters() + 2 * 512 * config.kv_bytes_per_token(2)
    gpu = SimpleNamespace(total_memory=1e9 * RUNTIME_GB + piece_bytes(config.hidden_size) + need * 0.75)
    for name, found in {"is_available": True, "device_count": 2, "get_device_properties": gpu}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *given, found=found: found)
    choices = Choices(str(byte_checkpoint), ["quest"], ["passkey"], [512], [64], 1, {})
    run = load_run_config(write_config(choices, tmp_path / "own.yaml", False, (notes := list[Any]()).append))
    assert [spec.gpus for spec in run.models.values()] == [2] and not run.throughput
    assert "is split over 2 GPUs: scored by duo, full, " in notes[0]
