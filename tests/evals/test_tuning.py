"""Tuning: own prompts, one label a setting, and configurations whose scored prompts it must not touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from longdecode.engine.errors import ConfigError
from longdecode.evals import tuning
from longdecode.evals.run_config import build_run_config

ROOT = Path(__file__).parents[2]


def values(**more: Any) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config" / "h200.yaml").read_text(encoding="utf-8")) | more


def test_a_sweep_is_one_label_a_setting_on_prompts_of_its_own() -> None:
    config = build_run_config(tuning.tuning_config(values(), "tidal", "miniature", "reselect_layer", [4, 6]), "tuning")
    assert [spec.params["reselect_layer"] for spec in config.methods.values()] == [4, 6]
    assert config.seed == tuning.SEED != values()["seed"]
    assert config.suites["mini_longgen"].contexts == (tuning.CONTEXT,)


def test_prompts_that_are_scored_are_refused() -> None:
    suites = {"mini_longgen": {"contexts": [tuning.CONTEXT], "samples": 1}}
    with pytest.raises(ConfigError, match="would leak"):
        tuning.tuning_config(values(seed=tuning.SEED, suites=suites), "tidal", "miniature", "reselect_layer", [4])
    with pytest.raises(ConfigError, match="'gone'"):
        tuning.tuning_config(values(), "gone", "miniature", "reselect_layer", [4])


@pytest.mark.parametrize("name", ["h200", "demo", "lychee"])
def test_the_configurations_take_the_best_layer_of_the_committed_sweep(name: str) -> None:
    table = pd.read_csv(ROOT / "results" / "h200" / "tuning.csv")
    rows = table[(table["method"] == "tidal") & (table["knob"] == "reselect_layer")]
    best = int(rows.sort_values("value")["setting"].iloc[-1])
    config = build_run_config(yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text(encoding="utf-8")), name)
    labels = [label for label, spec in config.methods.items() if spec.method == "tidal"]
    assert labels and {config.methods[label].params_of("miniature")["reselect_layer"] for label in labels} == {best}
