"""Throughput at equal memory: batches from bytes, selections of a wanted hit rate, and a whole job on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from longdecode.engine.errors import ConfigError
from longdecode.engine.weights import random_decoder
from longdecode.evals import gate
from longdecode.evals.records import SpeedRecord
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.store import read_records
from longdecode.evals.throughput import equal_memory, harness
from longdecode.evals.throughput.equal_memory import EqualMemoryBench, footprint
from longdecode.evals.throughput.forced_selection import draw_selections, share_kept
from longdecode.evals.throughput.harness import shape_config
from longdecode.evals.throughput.measure import measure_speed

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]


GRID = {
    "bench": "equal_memory", "model": "miniature-shape", "contexts": [320, 400], "budgets": [64],
    "variants": ["near", "far", "beside", "dma", "shadow"], "sequences": 2, "host_gib": 1,
    "hits": {"near": [0.8], "far": [0.8, 0.9], "beside": [0.8]}, "rounds": 2, "steps": 4,
}  # fmt: skip
METHODS = {
    "full": {},
    "near": {"method": "infllm2", "params": {"block_size": 8}},
    "far": {"method": "infllm2", "params": {"block_size": 8, "offload": True}},
    "ahead": {"method": "nosa", "params": {"block_size": 8, "heads": "random:1", "offload": True, "prefetch": True}},
    "beside": {"method": "infllm2", "params": {"block_size": 8, "offload": True, "overlap": True, "spare_slots": 3}},
    "dma": {"params": {"heads": "random:1"}},
    "shadow": {"method": "shadowkv", "params": {"offload": True}},
}


def run_of(**changes: Any) -> RunConfig:
    values = {
        "profile": "shared", "device": "cpu", "dtype": "float32", "seed": 1, "budgets": [64], "methods": METHODS,
        "models": {"none": {"path": "none"}}, "suites": {"mini_recall": {"contexts": [256], "samples": 1}},
        "throughput": [GRID | changes],
    }  # fmt: skip
    return build_run_config(values, "test")


def bench_of(run: RunConfig) -> EqualMemoryBench:
    return EqualMemoryBench(run, "equal_memory", CPU)


@pytest.mark.parametrize("hit", [0.9, 0.75, 1.0])
def test_selections_have_the_wanted_hit_rate(hit: float) -> None:
    first = 60 * 8 + 2
    drawn = draw_selections((40, 2, 3, 2, 16), 8, first, hit, CPU, 7)
    assert drawn.shape == (40, 2, 3, 2, 16)
    assert share_kept(drawn) == pytest.approx(min(hit, 1 - 1 / 16 / 8), abs=0.03 if hit < 1 else 2e-3)
    for step in range(40):
        newest = (first + step) // 8
        lists = drawn[step].flatten(0, 2)
        assert all(len(set(one)) == 16 for one in lists.tolist())
        assert bool(((lists >= 0) & (lists <= newest)).all())
        for forced in (0, newest, newest - 3):
            assert bool((lists == forced).any(dim=1).all())
    assert not torch.equal(drawn[:, 0], drawn[:, 1]), "layers choose apart"


def test_refuses_what_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match="100 tokens are no more than the 16 blocks"):
        draw_selections((3, 1, 1, 1, 16), 8, 100, 0.9, CPU, 0)
    with pytest.raises(ConfigError, match=r"0\.05 is below that of independent lists"):
        draw_selections((3, 1, 1, 1, 16), 8, 800, 0.05, CPU, 0)


def test_batches_follow_from_the_bytes_of_a_sequence() -> None:
    cells = {(cell.variant, cell.context): cell for cell in bench_of(run_of()).cells()}
    token = 2 * 12 * 4 * 32 * 4
    for context in (320, 400):
        memory = 2 * context * token
        near, far = cells["near", context].params, cells["far", context].params
        pooled = near["device_bytes_per_sequence"] - context * token
        # A key of a window of 4 every 2 tokens, and the sums of those that are being filled.
        assert context // 2 * token / 2 * 0.9 < pooled < context // 2 * token / 2 * 1.1
        assert far["device_bytes_per_sequence"] == 8 * 8 * token + pooled
        assert (near["host_bytes_per_sequence"], far["host_bytes_per_sequence"]) == (0, context * token)
        assert cells["full", context].batch == 2
        for variant in ("near", "far", "dma"):
            cell = cells[variant, context]
            assert cell.params["memory_bytes"] == memory
            assert cell.batch == max(1, min(64, memory // cell.params["device_bytes_per_sequence"]))


def test_the_bytes_of_a_sequence_are_those_of_the_cache_that_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every variant of the committed configuration, on two layers: nothing is counted that is not allocated."""
    small = replace(shape_config("nosa-8b"), num_layers=2, hidden_size=32, intermediate_size=32, vocab_size=8)
    for module in (equal_memory, harness):
        monkeypatch.setattr(module, "config_of", lambda run, name, positions=0: small)
    values = yaml.safe_load((ROOT / "config/offload.yaml").read_text())
    values["throughput"] = [values["throughput"][0] | {"contexts": [8192], "steps": 5}]
    run = build_run_config(values | {"device": "cpu", "dtype": "float32"}, "test")
    bench, decoder = bench_of(run), random_decoder(small, 0, CPU, torch.float32)
    cells = {cell.variant: cell for cell in bench.cells()}
    assert set(cells) == {"full", *run.throughput.grids[0].variants}
    for cell in cells.values():
        shape = decoder.cache_shape(1, cell.context, cell.grid.cached_tokens)
        device, host = footprint(bench.method(cell), shape)
        assert (cell.params["device_bytes_per_sequence"], cell.params["host_bytes_per_sequence"]) == (device, host)
        assert device > 0, cell.variant


def test_a_job_times_every_cell_and_counts_what_it_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "check_method", lambda *args, **kwargs: None)
    monkeypatch.setattr(equal_memory, "MAX_BATCH", 3)
    run = run_of(contexts=[320], variants=[*GRID["variants"], "ahead"], hits=GRID["hits"] | {"ahead": [0.8]})
    measure_speed(run, "equal_memory", tmp_path / "speed.parquet")
    records = read_records(tmp_path / "speed.parquet", SpeedRecord)
    found = {(r.variant, r.params.get("hit_rate")): r for r in records}
    ahead = found.pop(("ahead", 0.8))
    assert ahead.status == "unsupported" and "a layer early" in str(ahead.reason)
    assert {r.status for r in found.values()} == {"ok"}, [r.reason for r in records if r.status != "ok"]
    assert len(found) == 7 and all(r.reference == "full" for r in found.values())
    block, lists = 2 * 8 * 32 * 4, 12 * 4

    def blocks(record: SpeedRecord) -> float:
        """Blocks that a list fetches in a step."""
        return float(record.params["fetched_bytes"]) / block / lists

    assert blocks(found["far", 0.8]) == pytest.approx(8 * 0.2, rel=0.3)
    assert blocks(found["far", 0.9]) == pytest.approx(8 * 0.1, rel=0.3)
    # Spare slots hold some of what the step before did not list.
    assert 0 < blocks(found["beside", 0.8]) < blocks(found["far", 0.8])
    assert found["shadow", None].params["fetched_bytes"] > 0
    for variant, rate in (("full", None), ("near", 0.8), ("dma", None)):
        assert found[variant, rate].params["fetched_bytes"] == 0
    full, far = found["full", None], found["far", 0.8]
    assert full.batch == 2 and far.batch == 3 and far.bytes_min is not None and full.bytes_min is not None
    assert far.bytes_min < full.bytes_min
