"""Throughput at equal memory: batches from bytes, selections of a wanted hit rate, and a whole job on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from longdecode.engine.errors import ConfigError, DataUnavailableError, UnsupportedCellError
from longdecode.engine.weights import random_decoder
from longdecode.evals import gate
from longdecode.evals.records import SpeedRecord
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.store import read_records
from longdecode.evals.throughput.equal_memory import EqualMemoryBench
from longdecode.evals.throughput.equal_memory_cells import _held, equal_memory_cells
from longdecode.evals.throughput.measure import measure_speed
from longdecode.evals.throughput.models import shape_config
from longdecode.evals.throughput.replayed import replay
from longdecode.evals.throughput.wandering import Turnover, share_kept, wander
from longdecode.training.forks.traces import EMPTY, Trace

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rng_ids(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


SETTINGS = {
    "model": "miniature-shape", "contexts": [320, 400], "budget": 64,
    "methods": ["near", "far", "ahead", "beside", "dma", "shadow"],
    "sequences": 2, "host_gib": 1, "max_batch": 3,
    "hits": {"near": 0.8, "far": 0.8, "ahead": [0.7, 0.9], "beside": 0.8, "shadow": 0.7},
    "sweep": [0.9], "sweep_label": "far", "parts": ["far", "beside"], "recall": 0.5, "rounds": 2, "steps": 4,
}  # fmt: skip
METHODS = {
    "full": {},
    "near": {"method": "infllm2", "params": {"block_size": 8}},
    "far": {"method": "infllm2", "params": {"block_size": 8, "offload": True}},
    "ahead": {
        "method": "nosa",
        "params": {"block_size": 8, "heads": "random:1", "offload": True, "prefetch": True, "spare_slots": 3},
    },
    "beside": {"method": "infllm2", "params": {"block_size": 8, "offload": True, "overlap": True, "spare_slots": 3}},
    "dma": {"params": {"heads": "random:1"}},
    "shadow": {"method": "shadowkv", "params": {"offload": True}},
}


def run_of(**changes: Any) -> RunConfig:
    values = {
        "profile": "shared", "device": "cpu", "dtype": "float32", "seed": 1, "budgets": [64], "methods": METHODS,
        "models": {"none": {"path": "none"}}, "suites": {"mini_recall": {"contexts": [256], "samples": 1}},
        "throughput": {"equal_memory": {**SETTINGS, **changes}},
    }  # fmt: skip
    return build_run_config(values, "test")


@pytest.mark.parametrize(("hit", "recall"), [(0.9, 1.0), (0.75, 0.5)])
def test_selections_have_the_wanted_hit_rate(hit: float, recall: float) -> None:
    turnover, first = Turnover(16, 4, 8), 60 * 8 + 2
    drawn = wander(turnover, first, 40, [hit, 1.0], (3, 2), CPU, 7, recall)
    assert drawn.blocks.shape == (40, 2, 3, 2, 16)
    assert share_kept(drawn.blocks[:, 0]) == pytest.approx(hit, abs=0.03)
    assert share_kept(drawn.blocks[:, 1]) == pytest.approx(1 - 1 / 16 / 8, abs=2e-3)
    for step in range(40):
        newest = (first + step) // 8
        lists = drawn.blocks[step].flatten(0, 2)
        assert all(len(set(one)) == 16 for one in lists.tolist())
        assert bool(((lists >= 0) & (lists <= newest)).all())
        for forced in (0, newest, newest - 3):
            assert bool((lists == forced).any(dim=1).all())
    fresh = ~(drawn.blocks[1:, :, ..., :, None] == drawn.blocks[:-1, :, ..., None, :]).any(-1)
    right = drawn.guesses[1:] == drawn.blocks[1:]
    assert bool(right[~fresh].all())
    assert float(right[fresh].double().mean()) == pytest.approx(recall, abs=0.08)


def test_chunks_of_a_prompt_are_chosen_with_the_wanted_hit_rate() -> None:
    """No chunk is always chosen and none comes: every list is of the 300 there are."""
    drawn = wander(Turnover(24, 0, 8), 300 * 8 - 1, 40, [0.7, 1.0], (3, 2), CPU, 7)
    assert drawn.blocks.shape == (40, 2, 3, 2, 24) and bool((drawn.counts == 24).all())
    assert share_kept(drawn.blocks[:, 0]) == pytest.approx(0.7, abs=0.03)
    assert share_kept(drawn.blocks[:, 1]) == 1
    assert 0 <= int(drawn.blocks.min()) < 30 and 270 < int(drawn.blocks.max()) < 300
    assert all(len(set(one)) == 24 for one in drawn.blocks.flatten(0, 3).tolist())
    with pytest.raises(ConfigError, match="no more than the 24 blocks"):
        wander(Turnover(24, 0, 8), 24 * 8 - 1, 3, [0.7], (1, 1), CPU, 0)


def test_refuses_what_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match="100 tokens are no more than the 16 blocks"):
        wander(Turnover(16, 4, 8), 100, 3, [0.9], (1, 1), CPU, 0)
    with pytest.raises(ConfigError, match=r"0\.05 is below that of independent lists"):
        wander(Turnover(16, 4, 8), 800, 3, [0.05], (1, 1), CPU, 0)
    with pytest.raises(ConfigError, match="a window of 15 blocks"):
        Turnover(16, 15, 8)


def test_batches_follow_from_the_bytes_of_a_sequence() -> None:
    run = run_of()
    assert run.throughput is not None and run.throughput.equal_memory is not None
    spec, config = run.throughput.equal_memory, shape_config("miniature-shape")
    cells = {(c.label, c.context): c for c in equal_memory_cells(run, spec, config, torch.float32) if c.stage == "step"}
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
        for label in ("near", "far", "ahead", "dma"):
            cell = cells[label, context]
            assert cell.params["memory_bytes"] == memory
            assert cell.batch == max(1, min(3, memory // cell.params["device_bytes_per_sequence"]))


def test_the_bytes_of_a_sequence_are_those_of_the_cache_that_is_timed() -> None:
    """For every label of the committed configuration, on two layers: nothing is counted that is not allocated."""
    values = yaml.safe_load((ROOT / "config/offload.yaml").read_text())
    values["throughput"]["equal_memory"] |= {"contexts": [8192], "parts_context": None, "steps": 5}
    run = build_run_config(values | {"device": "cpu"}, "test")
    assert run.throughput is not None and run.throughput.equal_memory is not None
    spec, config = run.throughput.equal_memory, replace(shape_config("nosa-8b"), num_layers=2)
    decoder = random_decoder(replace(config, hidden_size=32, intermediate_size=32, vocab_size=8), 0, CPU, torch.float32)
    model: Any = SimpleNamespace(decoder=decoder, config=config)
    nothing: Any = SimpleNamespace(run=run, device=CPU, dtype=torch.float32)
    bench = EqualMemoryBench(nothing, nothing, model, spec, nothing)
    cells = [c for c in equal_memory_cells(run, spec, config, torch.float32) if c.stage == "step"]
    assert {cell.label for cell in cells} == {"full", *spec.methods}
    for cell in {cell.label: cell for cell in cells}.values():
        method = bench._method(cell)
        cache = bench._cache(method, replace(cell, batch=1))
        state = method.decode_in(cache)
        assert cell.params["device_bytes_per_sequence"] == cache.nbytes() + _held(state.method_state), cell.label
        assert cell.params["host_bytes_per_sequence"] == cache.host_nbytes(), cell.label


def test_hit_rates_come_from_a_measured_table(tmp_path: Path) -> None:
    table = tmp_path / "locality.csv"
    table.write_text(
        "label,context,layer,head,gamma\nfork,64,0,0,0.1\nfork,128,0,0,0.8\nfork,128,0,1,0.9\nfork,128,1,0,0.6\n"
        "other,128,0,0,0.2\n"
    )
    run = run_of(hits={"near": "fork", "far": 0.8}, locality=str(table))
    assert run.throughput is not None and run.throughput.equal_memory is not None
    spec = run.throughput.equal_memory
    assert spec.rates("near", 3) == (0.85, 0.85, 0.6) and spec.rates("far", 2) == (0.8, 0.8)
    assert spec.rates("dma", 2) is None
    config = shape_config("miniature-shape")
    cells = {c.label: c for c in equal_memory_cells(run, spec, config, torch.float32)}
    assert cells["near"].params["layer_hits"] == [0.85] * 6 + [0.6] * 6
    table.unlink()
    with pytest.raises(DataUnavailableError, match="nosa_locality"):
        spec.rates("near", 3)


def test_a_trace_that_is_yet_to_be_recorded_can_be_planned() -> None:
    run = run_of(hits={"far": "no/such/fork.npz"}, sweep=[], sweep_label="", parts=[])
    assert run.throughput is not None and run.throughput.equal_memory is not None
    spec, config = run.throughput.equal_memory, shape_config("miniature-shape")
    cell = next(c for c in equal_memory_cells(run, spec, config, torch.float32) if c.label == "far")
    assert (cell.params["hit_rate"], cell.params["layer_hits"]) == ("trace fork", None)


def test_a_trace_is_replayed_block_by_block(tmp_path: Path, rng_ids: np.random.Generator) -> None:
    """Lists are those of the recording, whose newest block is the newest of the replay."""
    ids = np.stack([np.sort(rng_ids.permutation(30)[:6]) for _ in range(12 * 3 * 2 * 2)]).reshape(12, 3, 2, 2, 6)
    ids[..., 5] = 30 + np.arange(12)[:, None, None, None] // 5  # the newest block
    ids[3:, 1, :, 0, 0] = EMPTY
    trace = Trace(ids.astype(np.uint16), {"label": "fork"})
    trace.write(tmp_path / "fork.npz")
    newest = torch.tensor([90] * 6 + [91] * 4)
    found = replay(tmp_path / "fork.npz", newest, 6, (3, 4), 7, CPU)
    assert found.blocks.shape == (10, 6, 3, 4, 6)
    for step in range(10):
        for layer, row, head in np.ndindex(6, 3, 4):
            want = ids[step + row // 2, layer // 2, row % 2, head // 2]
            listed = [int(b) for b in want[want != EMPTY]]
            listed = [int(newest[step]) if block == max(listed) else block for block in listed]
            count = int(found.counts[step, layer, row, head])
            assert sorted(found.blocks[step, layer, row, head, :count].tolist()) == sorted(listed)
    for changes, problem in (
        ({"newest": torch.arange(12)}, "13 steps are needed, the trace has 12"),
        ({"listed": 5}, "6 blocks a list are needed, the replay takes 5"),
        ({"newest": torch.tensor([20])}, "33 blocks are needed, the replay takes 20"),
        ({"path": tmp_path / "none.npz"}, "nosa_locality"),
    ):
        given = {"path": tmp_path / "fork.npz", "newest": newest, "layers": 6, "lists": (3, 4), "listed": 7} | changes
        with pytest.raises((UnsupportedCellError, DataUnavailableError), match=problem):
            replay(**given, device=CPU)


def test_a_job_times_every_cell_and_counts_what_it_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "check_method", lambda *args, **kwargs: None)
    run = run_of(contexts=[320])
    measure_speed(run, "equal_memory", tmp_path / "speed.parquet", keep_going=False)
    records = read_records(tmp_path / "speed.parquet", SpeedRecord)
    found = {(r.variant, r.stage, r.params.get("hit_rate")): r for r in records}
    assert {r.status for r in records} == {"ok"}, [r.reason for r in records if r.status != "ok"]
    assert len(records) == 7 + 2 * 4 + 1
    block = 2 * 8 * 32 * 4
    lists = 12 * 4

    def blocks(record: SpeedRecord) -> float:
        """Blocks that a list fetches in a step."""
        moved = record.params["fetched_bytes"] + record.params["prefetched_bytes"]
        return moved / block / lists

    assert blocks(found["far", "step", 0.8]) == pytest.approx(8 * 0.2, rel=0.3)
    assert blocks(found["far", "step", 0.9]) == pytest.approx(8 * 0.1, rel=0.3)
    assert blocks(found["far", "refetch", 0.8]) == 7
    assert blocks(found["far", "resident", 0.8]) < 0.3
    ahead = found["ahead", "step", "by layer"].params
    assert 0.3 < ahead["prefetched_bytes"] / (ahead["fetched_bytes"] + ahead["prefetched_bytes"]) < 0.9
    for label in ("full", "near", "dma"):
        record = next(r for r in records if r.variant == label)
        assert record.params.get("fetched_bytes", 0) == 0
    # Six of the seven chunks that fit 64 tokens go by score or stay as outliers, of which one; values alone.
    moved = found["shadow", "step", 0.7].params["fetched_bytes"] / (8 * 12 * 4 * 32 * 4)
    assert moved == pytest.approx(5 * 0.3, rel=0.3)
    # Spare slots hold some of what the step before did not list.
    assert 0 < blocks(found["beside", "step", 0.8]) < blocks(found["far", "step", 0.8])
    for label in ("far", "beside"):
        transfer, step = found[label, "transfer", 0.8], found[label, "step", 0.8]
        assert transfer.reference == "pinned_copy" and transfer.bytes_min is not None
        assert transfer.bytes_min == pytest.approx(step.params["fetched_bytes"], rel=0.05)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "nosa-8"}, "nosa-8b"),
        ({"methods": ["near", "fat"]}, "far"),
        ({"parts": ["fare"]}, "far"),
        ({"contexts": [66]}, "more than budget and steps"),
        ({"hits": {"near": 1.5}}, "hits"),
        ({"parts_context": 64}, "nothing is timed there"),
        ({"sweep_label": "dma"}, "no hit rate"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run_of(**changes)
