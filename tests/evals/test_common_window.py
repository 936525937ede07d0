"""Equal windows: the same sinks and recent tokens for every method that has the knobs, inside its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from longdecode.engine.errors import ConfigError
from longdecode.evals.fairness import require_fair
from longdecode.evals.run_config import build_run_config
from longdecode.methods.conformance import check_method

ROOT = Path(__file__).parents[2]


def values(**more: Any) -> dict[str, Any]:
    return {
        "profile": "trial",
        "models": {"miniature": {"path": str(ROOT / "models" / "miniature" / "weights")}},
        "methods": {"full": {}, "tova": {}, "tidal": {"by_model": {"miniature": {"recent_tokens": 8}}},
                    "streaming": {}},
        "budgets": [0.25],
        "suites": {"mini_recall": {"contexts": [256], "samples": 1}},
        "common_window": {"sinks": 16, "recent": 32},
    } | more  # fmt: skip


def test_methods_with_the_knobs_get_a_label_with_the_common_ones() -> None:
    run = build_run_config(values(allow_untuned=True), "run.yaml")
    assert list(run.methods) == ["full", "tova", "tidal", "tidal+window", "streaming", "streaming+window"]
    assert run.methods["tidal+window"].params_of("miniature") == {"sink_tokens": 16, "recent_tokens": 32}
    assert run.methods["tidal"].params_of("miniature") == {"recent_tokens": 8}
    assert run.methods["streaming+window"].params_of("miniature") == {"sinks": 16}
    require_fair(build_run_config(values(methods={"full": {}, "tidal": {}, "streaming": {}}), "run.yaml"))


def test_a_part_of_the_run_makes_ablations() -> None:
    window = {"sinks": 4, "recent": 8, "budgets": [0.5], "suites": ["mini_recall"]}
    run = build_run_config(values(common_window=window), "run.yaml")
    assert run.methods["tidal+window"].is_ablation and not run.methods["tidal"].is_ablation
    with pytest.raises(ConfigError, match=r"suites: unknown suite of this run 'mini_recal'"):
        build_run_config(values(common_window={**window, "suites": ["mini_recal"]}), "run.yaml")


def test_a_label_cannot_be_named_as_if_its_window_were_the_common_one() -> None:
    methods = {"full": {}, "tidal+window": {"method": "tidal", "params": {"reselect_layer": 7}}}
    with pytest.raises(ConfigError, match=r"methods\.tidal\+window: labels that end in \+window"):
        build_run_config(values(methods=methods), "run.yaml")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tidal", {"sink_tokens": 8, "recent_tokens": 5}),
        ("oracle_topk", {"sink_tokens": 40, "recent_tokens": 60}),
    ],
)
def test_windows_are_read_inside_the_budget(method: str, params: dict[str, Any]) -> None:
    check_method(method, torch.device("cpu"), params)
