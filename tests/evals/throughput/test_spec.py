"""The ``throughput`` key: what is read is what was written; wrong names are refused with the nearest valid one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longdecode.engine.errors import ConfigError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.fingerprint import speed_settings
from longdecode.evals.run_config import build_run_config, load_run_config
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.decode_cells import Labels, decode_cells
from longdecode.evals.throughput.measure import _cells
from longdecode.evals.throughput.spec import OPS, ThroughputSpec

ROOT = Path(__file__).parents[3]
VALUES: dict[str, Any] = {
    "profile": "p",
    "models": {"mine": {"path": "x"}},
    "methods": {"full": {}, "quest": {}, "small": {"method": "streaming"}},
    "budgets": [0.5],
    "suites": {"mini_recall": {"contexts": [256], "samples": 1}},
    "throughput": {
        "kernels": {
            "shape": "qwen3-8b",
            "contexts": [1024],
            "batches": [1, 4],
            "budgets": [64, 0.1],
            "hybrid": {"contexts": [16000], "batches": [8], "budgets": [0.1]},
        },
        "decode": {
            "mine": {"contexts": [512, 1024], "batches": [1], "budgets": [64], "steps": 3, "stages": False},
            "llama3-8b": {"methods": ["quest", "free_selection"], "contexts": [512], "batches": [2], "budgets": [0.5]},
        },
    },
}


def edited(edit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    values = copy.deepcopy(VALUES)
    edit(values["throughput"])
    return values


def test_throughput_at_equal_memory_alone_brings_no_kernels_job() -> None:
    shared = {"model": "nosa-8b", "contexts": [65536], "methods": ["quest"]}
    for part, jobs in (
        ({}, ("equal_memory",)),
        ({"kernels": VALUES["throughput"]["kernels"]}, ("kernels", "equal_memory")),
        ({"decode": VALUES["throughput"]["decode"]}, ("kernels", "mine", "llama3-8b", "equal_memory")),
    ):
        found = build_run_config(VALUES | {"throughput": {"equal_memory": shared} | part}, "c").throughput
        assert found is not None and found.jobs == jobs


def test_times_do_not_depend_on_where_data_lies() -> None:
    here, there = (build_run_config(VALUES | {"data": {"pg19": place}}, "c") for place in (None, "hub"))
    assert speed_settings(here, "mine") == speed_settings(there, "mine")


def test_it_is_read_as_written() -> None:
    spec = build_run_config(VALUES, "c").throughput
    assert spec is not None
    assert spec.jobs == ("kernels", "mine", "llama3-8b")
    assert spec.kernels.ops == OPS and spec.kernels.shape == "qwen3-8b"
    assert [budget.text for budget in spec.kernels.budgets] == ["64", "0.1"]
    hybrid = spec.kernels.hybrid
    assert hybrid is not None and hybrid.contexts == (16000,)
    assert (hybrid.full_heads, hybrid.lengths) == ((0, 1, 2, 4, 8), ("full",))
    mine = spec.decode["mine"]
    assert mine.methods == ("full", "quest", "small", "free_selection")
    assert (mine.steps, mine.stages, mine.rounds, mine.hf_batches) == (3, False, 10, (1,))
    assert spec.decode["llama3-8b"].methods == ("quest", "free_selection")


def test_absent_means_no_throughput_tests() -> None:
    values = {key: value for key, value in VALUES.items() if key != "throughput"}
    assert build_run_config(values, "c").throughput is None
    assert build_run_config(values | {"throughput": {}}, "c").throughput == ThroughputSpec()


@pytest.mark.parametrize(
    ("edit", "key", "says"),
    [
        (lambda v: v.update(kernel={}), "throughput.kernel", "'kernels'"),
        (lambda v: v["kernels"].update(ops=["topk_selec"]), "throughput.kernels.ops", "'topk_select'"),
        (lambda v: v["kernels"].update(shape="llama3-8"), "throughput.kernels.shape", "'llama3-8b'"),
        (lambda v: v["kernels"].update(contexts=[8]), "throughput.kernels.contexts", "8"),
        (lambda v: v["kernels"].update(budgets=[0]), "throughput.kernels.budgets", "0;"),
        (lambda v: v["kernels"].pop("batches"), "throughput.kernels.batches", "missing"),
        (lambda v: v["kernels"]["hybrid"].update(full_head=[0]), "throughput.kernels.hybrid.full_head", "'full_heads'"),
        (lambda v: v["kernels"]["hybrid"].update(full_heads=[9]), "throughput.kernels.hybrid.full_heads", "8 KV heads"),
        (lambda v: v["kernels"]["hybrid"].update(lengths=["any"]), "throughput.kernels.hybrid.lengths", "'any'"),
        (lambda v: v["kernels"]["hybrid"].pop("budgets"), "throughput.kernels.hybrid.budgets", "missing"),
        (lambda v: v["kernels"].update(ops=["topk_select_into"], hybrid=None), "throughput.kernels.hybrid", "topk"),
        (lambda v: v["decode"]["mine"].update(hf_contexts=[768]), "throughput.decode.mine.hf_contexts", "768"),
        (lambda v: v["decode"]["mine"].update(prefill_contexts=[8]), "throughput.decode.mine.prefill_contexts", "512"),
        (
            lambda v: v["decode"]["mine"].update(hf_contexts=[512], hf_batches=[2]),
            "throughput.decode.mine.hf_batches",
            "2 in",
        ),
        (lambda v: v["decode"].update(miine={}), "throughput.decode.miine", "'mine'"),
        (lambda v: v["decode"]["mine"].update(methods=["qest"]), "throughput.decode.mine.methods", "'quest'"),
        (lambda v: v["decode"]["mine"].update(step=1), "throughput.decode.mine.step", "'steps'"),
        (lambda v: v["decode"]["mine"].update(rounds=1), "throughput.decode.mine.rounds", "1"),
        (lambda v: v["decode"]["mine"].update(forward_rows=[9, 1]), "throughput.decode.mine.forward_rows.list", "is 1"),
        (
            lambda v: v["decode"]["mine"].update(forward_rows=[9, 9]),
            "throughput.decode.mine.forward_rows.list",
            "twice",
        ),
        (lambda v: v["decode"]["mine"].update(steps=512), "throughput.decode.mine.steps", "512"),
        (lambda v: v["decode"]["mine"].update(stages="yes"), "throughput.decode.mine.stages", "'yes'"),
        (lambda v: v["decode"]["mine"].update(hf_contexts=[0]), "throughput.decode.mine.hf_contexts", "0"),
    ],
)
def test_wrong_values_are_refused(edit: Callable[[dict[str, Any]], Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_run_config(edited(edit), "my.yaml")
    assert str(caught.value).startswith(f"my.yaml: {key}: ") and says in str(caught.value)


def test_hybrid_sizes_alone_need_no_others() -> None:
    values = edited(lambda v: v.update(kernels={"ops": ["hybrid_attention"], "hybrid": v["kernels"]["hybrid"]}))
    spec = build_run_config(values, "c").throughput
    assert spec is not None and spec.kernels.contexts == () and spec.kernels.hybrid is not None
    miniature = edited(lambda v: v["kernels"].update(shape="miniature-shape"))
    small = build_run_config(miniature, "c").throughput
    assert small is not None and small.kernels.hybrid is not None and small.kernels.hybrid.full_heads == (0, 1, 2, 4)


def test_a_model_named_like_the_kernels_job_is_refused() -> None:
    values = edited(lambda v: v["decode"].update(kernels=v["decode"].pop("mine")))
    values["models"] = {"kernels": {"path": "x"}}
    with pytest.raises(ConfigError, match="kernels' job"):
        build_run_config(values, "c")


@pytest.mark.parametrize("profile", ["demo", "tiny", "h200", "bench"])
def test_the_shipped_profiles_time_something(profile: str) -> None:
    spec = load_run_config(ROOT / "config" / f"{profile}.yaml").throughput
    assert spec is not None and spec.decode and (spec.kernels.ops or profile == "bench")


def test_contexts_and_labels_may_keep_to_a_part_of_the_grid() -> None:
    values = copy.deepcopy(VALUES)
    values["throughput"]["decode"]["mine"].update(
        batches=[1, 4], smallest_batch_contexts=[1024], only={"quest": {"contexts": [512], "batches": [4]}}
    )
    run = build_run_config(values, "c")
    assert run.throughput is not None
    mine = run.throughput.decode["mine"]
    assert [mine.times("full", 1024, batch) for batch in (1, 4)] == [True, False]
    assert [mine.times("quest", *place) for place in ((512, 4), (512, 1), (1024, 1))] == [True, False, False]
    config = ModelConfig("llama", 96, 64, 96, 4, 4, 2, 32, 2048, rope={"rope_theta": 1e4})
    cells = decode_cells(Labels(run, "mine"), mine, config)
    assert {(cell.context, cell.batch) for cell in cells if cell.label == "quest"} == {(512, 4)}
    assert {(cell.context, cell.batch) for cell in cells if cell.label == "full"} == {(512, 1), (512, 4), (1024, 1)}


def test_a_pass_is_timed_at_each_number_of_rows() -> None:
    """A number alone makes the cells that it always made; records of several rows do not take each other's place."""

    def cells(**given: Any) -> list[SpeedCell]:
        run = build_run_config(edited(lambda v: v["decode"]["llama3-8b"].update(forward_contexts=[512], **given)), "c")
        assert run.throughput is not None
        return _cells(SimpleNamespace(run=run, name="llama3-8b"), run.throughput)  # type: ignore[arg-type]

    one, several = cells(), cells(forward_rows=[2, 41, 121])
    rows = {cell.key: cell.params["rows"] for cell in several if cell.stage == "forward_rows"}
    assert list(rows.values()) == [2, 41, 121] and {cell.key for cell in one} <= {cell.key for cell in several}
    assert len(several) == len(one) + 2
    (old,) = [cell for cell in one if cell.stage == "forward_rows"]
    assert cells(forward_rows=41) == one and rows[old.key] == 41


@pytest.mark.parametrize(
    ("entry", "says"), [({"quets": {}}, "quest"), ({"quest": {"contexts": [300]}}, "nothing is timed there")]
)
def test_a_part_outside_the_grid_is_refused(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_run_config(edited(lambda v: v["decode"]["mine"].update(only=entry)), "c")
