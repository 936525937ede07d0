"""Throughput at equal memory and on real text: batches from bytes, wanted hit rates, texts in windows, whole jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from longdecode.analysis.cells import speed_table
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.weights import load_decoder, random_decoder
from longdecode.evals import gate
from longdecode.evals.plan import Plan
from longdecode.evals.preflight import look
from longdecode.evals.records import SpeedRecord
from longdecode.evals.run_config import RunConfig, build_run_config, launches_of
from longdecode.evals.stats import Spread
from longdecode.evals.store import read_records
from longdecode.evals.throughput import equal_memory, harness
from longdecode.evals.throughput.equal_memory import EqualMemoryBench, OwnChoicesBench
from longdecode.evals.throughput.forced_selection import draw_selections, share_kept
from longdecode.evals.throughput.harness import shape_config
from longdecode.evals.throughput.measure import measure_speed
from longdecode.evals.throughput.spec import RAW_SHAPES
from longdecode.methods.registry import get_method
from longdecode.training.miniature.checkpoint import save_checkpoint
from longdecode.training.miniature.model import Miniature, MiniatureShape

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]
LAYERS, MODELS = 3, {"miniature": {"path": ""}}


@pytest.fixture(scope="module", autouse=True)
def three_layers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The miniature's shape, and a random model of it, with three layers instead of twelve."""
    torch.manual_seed(0)
    MODELS["miniature"]["path"] = str(folder := tmp_path_factory.mktemp("three"))
    save_checkpoint(Miniature(MiniatureShape(num_hidden_layers=LAYERS), compiled=False), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RAW_SHAPES["miniature-shape"], "num_hidden_layers", LAYERS)
        yield


GRID = {
    "bench": "equal_memory", "model": "miniature-shape", "contexts": [320, 400], "budgets": [64],
    "variants": ["near", "far", "beside", "dma", "shadow"], "sequences": 2, "host_gib": 1,
    "hits": {"near": [0.8], "far": [0.8, 0.9], "beside": [0.8]}, "rounds": 2, "steps": 2,
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


def run_of(*grids: dict[str, Any], methods: dict[str, Any] = METHODS) -> RunConfig:
    values = {
        "profile": "shared", "device": "cpu", "dtype": "float32", "seed": 1, "budgets": [64], "methods": methods,
        "models": MODELS, "suites": {"mini_recall": {"contexts": [256], "samples": 1}}, "throughput": list(grids),
    }  # fmt: skip
    return build_run_config(values, "test")


@pytest.mark.parametrize("hit", [0.9, 0.75, 1.0])
def test_selections_have_the_wanted_hit_rate(hit: float) -> None:
    first = 60 * 8 + 2
    drawn = draw_selections((40, 2, 3, 2, 16), 8, first, hit, CPU, 7)
    assert drawn.shape == (40, 2, 3, 2, 16)
    assert share_kept(drawn) == pytest.approx(min(hit, 1 - 1 / 16 / 8), abs=0.03 if hit < 1 else 2e-3)
    for step in range(40):
        newest, lists = (first + step) // 8, drawn[step].flatten(0, 2)
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
    cells = {(cell.variant, cell.context): cell for cell in EqualMemoryBench(run_of(GRID), "equal_memory", CPU).cells()}
    token = 2 * LAYERS * 4 * 32 * 4
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
    monkeypatch.setattr(harness, "shape_config", lambda name, positions: small)
    values = yaml.safe_load((ROOT / "config/offload.yaml").read_text())
    values["throughput"] = [values["throughput"][0] | {"contexts": [8192], "steps": 5}]
    run = build_run_config(values | {"device": "cpu", "dtype": "float32"}, "test")
    bench, decoder = EqualMemoryBench(run, "equal_memory", CPU), random_decoder(small, 0, CPU, torch.float32)
    cells = {cell.variant: cell for cell in bench.cells()}
    assert set(cells) == {"full", *run.throughput[0].variants}
    for cell in cells.values():
        device, host = bench.method(cell).footprint(decoder.cache_shape(1, cell.context, cell.grid.cached_tokens))
        assert (cell.params["device_bytes_per_sequence"], cell.params["host_bytes_per_sequence"]) == (device, host)
        assert device > 0, cell.variant


def test_a_job_times_every_cell_and_counts_what_it_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "check_method", lambda *args, **kwargs: None)
    monkeypatch.setattr(equal_memory, "MAX_BATCH", 3)
    ahead = {"variants": [*GRID["variants"], "ahead"], "hits": GRID["hits"] | {"ahead": [0.8]}}
    run = run_of(GRID | {"contexts": [320]} | ahead)
    measure_speed(run, "equal_memory", tmp_path / "speed.parquet")
    records = read_records(tmp_path / "speed.parquet", SpeedRecord)
    found = {(r.variant, r.params.get("hit_rate")): r for r in records}
    early = found.pop(("ahead", 0.8))
    assert early.status == "unsupported" and "a layer early" in str(early.reason)
    assert {r.status for r in found.values()} == {"ok"}, [r.reason for r in records if r.status != "ok"]
    assert len(found) == 7 and all(r.reference == "full" for r in found.values())

    def blocks(record: SpeedRecord) -> float:
        """Blocks that a list fetches in a step."""
        return float(record.params["fetched_bytes"]) / (2 * 8 * 32 * 4) / (LAYERS * 4)

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
    # After a kill the first that needs Full for a reference may force its own selections.
    (alone,) = measure_speed(run, "equal_memory", tmp_path / "x.parquet", choose=lambda cell: cell.variant == "near")
    assert (alone.status, alone.reference) == ("ok", "full"), alone.reason


OWN_METHODS = {
    "full": {},
    "near": {"method": "nosa", "params": {"block_size": 8, "heads": "random:1"}},
    "far": {"method": "nosa", "params": {"block_size": 8, "heads": "random:1", "offload": True}},
    "spare": {"method": "nosa", "params": {"block_size": 8, "heads": "random:1", "offload": True, "spare_slots": 4}},
    "shadow": {"method": "shadowkv", "params": {"offload": True}},
}


def grid_of(**changes: Any) -> dict[str, Any]:
    grid = {
        "bench": "own_choices", "models": dict.fromkeys(OWN_METHODS, "miniature"), "contexts": [384], "budgets": [64],
        "prompts": "own", "sequences": 2, "host_gib": 1, "rounds": 2, "steps": 3,
    }  # fmt: skip
    return grid | changes


def run_of_own(*grids: dict[str, Any]) -> RunConfig:
    return run_of(*(grids or [grid_of()]), methods=OWN_METHODS)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SpeedRecord]:
    """A whole job."""
    return whole_job(run_of_own(), tmp_path_factory.mktemp("own"))


def whole_job(run: RunConfig, folder: Path) -> dict[str, SpeedRecord]:
    """Time every cell and return the records by label."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "check_method", lambda *args, **kwargs: None)
        patch.setattr(equal_memory, "MAX_BATCH", 2)
        measure_speed(run, "own_choices", folder / "speed.parquet")
    records = read_records(folder / "speed.parquet", SpeedRecord)
    assert {r.status for r in records} == {"ok"}, [r.reason for r in records if r.status != "ok"]
    return {r.variant: r for r in records}


def own_bench(run: RunConfig) -> OwnChoicesBench:
    return OwnChoicesBench(run, "own_choices", CPU)


def test_a_prompt_leaves_as_many_tokens_as_are_decoded() -> None:
    grid = run_of_own().throughput[0]
    assert grid.scored_tokens == 1 + (2 + 2 * 2) * 3
    for request in own_bench(run_of_own()).requests(grid, 384, 3):
        assert len(request.prompt_ids) + len(request.forced_ids) == 384
        assert len(request.forced_ids) == grid.forced_tokens


def test_rows_are_windows_of_text_that_do_not_depend_on_the_batch() -> None:
    bench = own_bench(run_of_own())
    few, many = (bench.requests(bench.grids[0], 384, rows) for rows in (2, 9))
    assert many[:2] == few and len({request.prompt_ids for request in many}) == 9 and bench.ids
    joined = [" ".join(map(str, ids)) for ids in bench.ids]
    for request in many:
        wanted = " ".join(map(str, (*request.prompt_ids, *request.forced_ids)))
        assert sum(wanted in text for text in joined) == 1


def test_losses_are_those_of_plain_decoding(timed: dict[str, SpeedRecord]) -> None:
    """Steps timed in blocks are one generation: every label's loss is the engine's on the same words."""
    bench = own_bench(run_of_own())
    decoder = load_decoder(Path(MODELS["miniature"]["path"]), device=CPU, dtype=torch.float32)
    scored = run_of_own().throughput[0].scored_tokens
    for label, spec in run_of_own().methods.items():
        budget = 64 if spec.takes_budget else None
        method = get_method(spec.method).from_budget(budget, decoder.config, **spec.params_of("miniature"))
        rows = timed[label].batch
        found = Generator(decoder).run(bench.requests(bench.grids[0], 384, rows), method)
        loss = -sum(sum(one.forced_logprobs[:scored]) for one in found) / (rows * scored)
        assert timed[label].params["loss"] == pytest.approx(loss, abs=1e-6), label
    assert timed["far"].params["full_loss"] == timed["full"].params["loss"] != timed["far"].params["loss"]
    assert timed["near"].batch == 1 and timed["near"].params["full_loss"] != timed["full"].params["loss"]


def test_where_the_cache_lies_changes_bytes_and_no_loss(timed: dict[str, SpeedRecord], tmp_path: Path) -> None:
    run = run_of_own(grid_of(sequences=3, models=dict.fromkeys(("full", "near", "far"), "miniature")))
    alone = whole_job(run, tmp_path)
    assert alone["near"].batch == alone["far"].batch == 2
    assert alone["near"].params["loss"] == alone["far"].params["loss"] == timed["far"].params["loss"]
    near, far, spare = (timed[label] for label in ("near", "far", "spare"))
    assert far.params["loss"] == spare.params["loss"]
    assert near.params["fetched_bytes"] == 0 and near.params["miss_rate"] is None
    assert 0 < spare.params["miss_rate"] < far.params["miss_rate"] < 1 and 0 < timed["shadow"].params["miss_rate"] < 1
    block, lists = 2 * 8 * 32 * 4, LAYERS * 4
    assert far.params["fetched_bytes"] == pytest.approx(far.params["miss_rate"] * 8 * lists * block)
    assert all(r.reference == "full" and len(r.samples) == 2 and r.weights == "checkpoint" for r in timed.values())


def test_prompts_that_are_read_whole_leave_the_steps_choices(timed: dict[str, SpeedRecord], tmp_path: Path) -> None:
    models = {"full": "miniature", "far": "miniature"}
    whole = whole_job(run_of_own(grid_of(prompts="whole", models=models)), tmp_path)
    far, own = whole["far"], timed["far"]
    assert far.params["prompts"] == "whole" and far.key != own.key
    assert 0 < far.params["miss_rate"] < 1 and far.params["loss"] != own.params["loss"]
    # The same prompt read by full attention, then NOSA's steps on it.
    bench = own_bench(run_of_own())
    decoder = load_decoder(Path(MODELS["miniature"]["path"]), device=CPU, dtype=torch.float32)
    method = get_method("nosa").from_budget(64, decoder.config, block_size=8, heads="random:1")
    generator, requests = Generator(decoder), bench.requests(bench.grids[0], 384, 2)
    scored = run_of_own().throughput[0].scored_tokens
    prompt = replace(generator.prefill(requests, [method]), maker=method)
    found = generator.decode(prompt, method)
    loss = -sum(sum(one.forced_logprobs[:scored]) for one in found) / (2 * scored)
    assert far.params["loss"] == pytest.approx(loss, abs=1e-6)


def test_the_table_has_tokens_a_second(timed: dict[str, SpeedRecord]) -> None:
    table = speed_table(timed.values(), Spread(0.95, 100, 0)).set_index("variant")
    assert set(table.index) == set(timed)
    assert table["tokens_per_s"].to_numpy() == pytest.approx(1e6 / table["median_us"].to_numpy())


def test_grids_say_what_is_timed_where() -> None:
    near = {"full": "miniature", "near": "miniature"}
    run = run_of_own(
        grid_of(prompts="whole"),
        grid_of(prompts="whole", contexts=[512], budgets=[96], models={"full": "miniature", "far": "miniature"}),
        grid_of(budgets=[128], models=near),
    )
    cells = list({cell.key: cell for cell in own_bench(run).cells()}.values())
    found = [(c.context, c.variant, c.budget.text) for c in cells]
    first = [(384, variant, "full" if variant == "full" else "64") for variant in OWN_METHODS]
    assert found == [*first, (512, "full", "full"), (512, "far", "96"), (384, "near", "128")]
    assert {c.params["prompts"] for c in cells if c.budget.text != "128"} == {"whole"}
    assert [budget.text for budget in launches_of(run, "near")[0].budgets] == ["64", "128"]


def test_a_fork_that_another_run_trains_is_asked_for_by_the_jobs_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed run plans its other jobs and its pages without; a path that is no fork's is refused at once."""
    monkeypatch.chdir(ROOT)
    values = yaml.safe_load(Path("config/offload.yaml").read_text("utf-8").replace("results/nosa/", "results/absent/"))
    run = build_run_config(values | {"device": "cpu"}, "test")
    plan = Plan(run, ROOT)
    gone = {path for path in plan.timed_files("own_choices") if path.startswith("results/absent/forks/")}
    assert {Path(path).parts[4] for path in gone} == {"full_long", "infllm2_long", "nosa_long"}
    assert not plan.timed_files("equal_memory") and gone <= set(plan.made)
    look(run, plan.made)
    values["models"]["fork-nosa"] = {"path": "results/absent/fork/nosa/model"}
    wrong = build_run_config(values | {"device": "cpu"}, "test")
    with pytest.raises(ConfigError, match="no checkpoint folder at results/absent/fork/nosa/model"):
        look(wrong, Plan(wrong, ROOT).made)
