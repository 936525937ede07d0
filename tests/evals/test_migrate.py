"""Configurations of earlier versions in today's keys; what is stored here is in them already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longdecode.evals.migrate import migrated
from longdecode.evals.run_config import build_run_config
from longdecode.evals.yaml_file import read_yaml

ROOT = Path(__file__).parents[2]
OLD: dict[str, Any] = {
    "profile": "p",
    "models": {"m": {"path": "x"}},
    "methods": {"full": {}, "nosa": {}},
    "budgets": [0.5, {"bytes": 0.25}],
    "suites": {"longbench_plain": {"contexts": [256], "samples": 1}},
    "confidence": 0.95,
    "identification": {
        "defaults": {
            "model": "m",
            "target_heads": 6,
            "contexts": [256, 512],
            "context_count": 25,
            "sink": 4,
            "recent": 12,
        },
        "runs": {
            "kuma0": {"seed": 0},
            "kuma1": {"seed": 1},
            "code": {"objective": "code", "inherit": "previous_layer", "selection": "code"},
            "duo": {"kind": "direct", "objective": "l1", "sparse": "streaming"},
        },
        "overlap": {"model": "m", "contexts": [512], "k": [32]},
    },
    "adaptation": {
        "defaults": {"model": "m", "length": 512, "rows": 1},
        "runs": {"nosa": {"attention": "nosa", "head": "dma"}},
        "locality": {"labels": {"nosa": "m"}, "context": 512},
    },
}


def test_trainings_keep_their_names_seeds_and_sizes() -> None:
    values, left_out = migrated(OLD)
    run = build_run_config(values, "p.yaml", check_params=False)
    roles, forks = run.role_trainings, run.fork_trainings
    assert list(roles) == ["kuma0", "kuma1", "code", "duo"] and [roles["kuma1"].seed, roles["code"].seed] == [1, 0]
    assert (roles["code"].objective, roles["code"].selection, roles["duo"].sparse) == ("code", "code", "streaming")
    assert (roles["duo"].target_heads, roles["duo"].sink, roles["duo"].recent) == (6, 4, 12)
    assert (forks["nosa"].head, forks["nosa"].length, forks["nosa"].rows) == ("dma", 512, 1)
    assert dict(run.overlap) == {"m": (512,)} and dict(run.locality) == {"nosa": "m"}
    assert list(run.suites) == ["longbench_prompt"] and [budget.text for budget in run.budgets] == ["0.5", "bytes=0.25"]
    assert {"confidence", "training.kuma.context_count"} <= set(left_out)
    assert not any(key.startswith(("budgets", "models", "methods")) for key in left_out)


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*/config.yaml")), ids=lambda path: path.parent.name)
def test_stored_configurations_are_read_as_they_are(path: Path) -> None:
    build_run_config(read_yaml(path), str(path), check_params=False)
