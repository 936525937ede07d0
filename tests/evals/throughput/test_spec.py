"""The ``throughput`` key: what is read is what was written; wrong names are refused with the nearest valid one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from longdecode.engine.errors import ConfigError
from longdecode.evals.plan import Plan
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.throughput.harness import shape_config
from longdecode.evals.throughput.spec import OPS, RAW_SHAPES, Grid, grids_of, jobs_of, models_of, variants_of
from small_run import run_values

ROOT = Path(__file__).parents[3]
KERNELS = {"bench": "kernels", "model": "qwen3-8b", "contexts": [1024], "batches": [1, 4], "budgets": [64, 0.1]}
STEPS = {"bench": "decode", "model": "mine", "contexts": [512, 1024], "budgets": [64], "steps": 3}
EQUAL = {
    "bench": "equal_memory", "model": "nosa-8b", "contexts": [65536], "budgets": [4096], "variants": ["quest"],
    "hits": {"quest": [0.9]},
}  # fmt: skip
OWN = {"bench": "own_choices", "models": {"full": "mine", "quest": "mine"}, "contexts": [4096], "budgets": [64]}
METHODS = {"full": {}, "quest": {}, "small": {"method": "streaming"}}
VALUES = run_values(models={"mine": {"path": "x"}}, methods=METHODS)


def read(*grids: dict[str, Any]) -> tuple[Grid, ...]:
    return build_run_config(copy.deepcopy(VALUES) | {"throughput": list(grids)}, "my.yaml").throughput


def test_it_is_read_as_written() -> None:
    kernels, steps, rows, equal, own = read(
        KERNELS, STEPS, {"bench": "rows", "model": "llama3-8b", "contexts": [512], "rows": [2, 41]}, EQUAL, OWN
    )
    hybrid = ("hybrid_attention", "decode_attention_rows")
    assert kernels.ops == tuple(op for op in OPS if op not in hybrid) and kernels.model == "qwen3-8b"
    assert [budget.text for budget in kernels.budgets] == ["64", "0.1"]
    assert steps.variants == ("full", "quest", "small") and (steps.steps, steps.rounds) == (3, 10)
    assert rows.rows == (2, 41) and rows.timed_on == {"full": "llama3-8b"}
    assert equal.hits == {"quest": (0.9,)} and equal.timed_on == {"full": "nosa-8b", "quest": "nosa-8b"}
    assert own.timed_on == {"full": "mine", "quest": "mine"} and own.model == "mine"
    assert own.scored_tokens == 1 + (2 + 2 * 10) * 4


def test_a_job_has_the_grids_of_its_model_or_kind() -> None:
    grids = read(KERNELS, STEPS, STEPS | {"model": "llama3-8b", "variants": ["quest"]}, EQUAL, OWN)
    assert jobs_of(grids) == ("kernels", "mine", "llama3-8b", "equal_memory", "own_choices")
    assert [len(grids_of(grids, job)) for job in jobs_of(grids)] == [1, 1, 1, 1, 1]
    assert variants_of(grids, "llama3-8b") == ("full", "quest") and models_of(grids, "own_choices") == ("mine",)
    assert variants_of(grids, "kernels") == () == models_of(grids, "kernels")
    # Floors of a model bring the kernels' job.
    assert jobs_of(read(EQUAL)) == ("equal_memory",)
    assert jobs_of(read(EQUAL, STEPS)) == ("kernels", "mine", "equal_memory")
    for absent in ({}, {"throughput": None}, {"throughput": []}):
        assert build_run_config(VALUES | absent, "c").throughput == ()


def test_times_do_not_depend_on_where_data_lies() -> None:
    def depends(run: RunConfig) -> str:
        return Plan(run, ROOT).depends("throughput", job="mine")

    values = VALUES | {"throughput": [STEPS]}
    here, there = (build_run_config(values | {"data": {"pg19": place}}, "c") for place in (None, "hub"))
    assert depends(here) == depends(there)
    assert depends(here) != depends(build_run_config(VALUES | {"throughput": [STEPS | {"rounds": 3}]}, "c"))


@pytest.mark.parametrize(
    ("grid", "key", "says"),
    [
        (KERNELS | {"bench": "kernel"}, "bench", "'kernels'"),
        (KERNELS | {"ops": ["topk_selec"]}, "ops", "'topk_select'"),
        (KERNELS | {"model": "llama3-8"}, "model", "'llama3-8b'"), (KERNELS | {"budgets": [0]}, "budgets", "0;"),
        (KERNELS | {"ops": ["hybrid_attention"]}, "full_heads", "hybrid_attention is timed at its sizes"),
        (KERNELS | {"full_heads": [1], "kv_lengths": "mixed"}, "kv_lengths", "hybrid_attention as the only op"),
        (KERNELS | {"steps": 3}, "steps", "is no key of bench kernels"), (KERNELS | {"rows": [1]}, "rows", "1"),
        (STEPS | {"variants": ["qest"]}, "variants", "'quest'"),
        (STEPS | {"model": "miniature"}, "model", "nearest valid name: 'mine'"),
        (STEPS | {"model": "kernels"}, "model", "a job has that name"), (STEPS | {"rounds": 1}, "rounds", "1"),
        (STEPS | {"steps": 512}, "contexts", "512"), (STEPS | {"contexts": None}, "contexts", "missing"),
        ({"bench": "rows", "model": "mine", "contexts": [512]}, "rows", "missing"),
        (EQUAL | {"hits": {"quets": [0.9]}}, "hits", "'quest'"),
        (EQUAL | {"hits": {"quest": [1.5]}}, "hits", "1.5"),
        (EQUAL | {"contexts": [4098]}, "contexts", "more than 4100"),
        (EQUAL | {"budgets": None}, "budgets", "missing"), (OWN | {"models": {"quest": "mine"}}, "models", "full"),
        (OWN | {"models": {"full": "llama3-8b"}}, "model", "mine"),
        (OWN | {"models": {"full": "mine", "fat": "mine"}}, "variants", "fat"),
        (OWN | {"contexts": [96]}, "contexts", "tokens are needed"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(grid: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(grid)
    assert str(caught.value).startswith("my.yaml: throughput") and says in str(caught.value)
    assert key in str(caught.value)


def test_shapes_are_the_published_ones() -> None:
    """Parameters without norms and biases, as the models' cards say."""

    def count(raw: dict[str, Any]) -> int:
        hidden, dim = raw["hidden_size"], raw["head_dim"]
        heads = (2 * raw["num_attention_heads"] + 2 * raw["num_key_value_heads"]) * dim
        layer = hidden * (heads + 3 * raw["intermediate_size"])
        return int(raw["num_hidden_layers"] * layer + 2 * raw["vocab_size"] * hidden)

    billions = {"llama3-8b": 8.03, "qwen3-8b": 8.19, "llama2-7b": 6.74, "qwen2.5-7b": 7.61, "qwen2.5-14b": 14.77}
    assert {name: count(RAW_SHAPES[name]) / 1e9 for name in billions} == pytest.approx(billions, rel=2e-3)
    assert shape_config("llama3-8b", 524288).max_positions == 524288
