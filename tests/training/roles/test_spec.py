"""The configuration's section: defaults shared, overridden and derived; wrong entries refused with the nearest name."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from longdecode.engine.errors import ConfigError
from longdecode.evals.identification_spec import IdentificationRun, IdentificationSpec
from longdecode.evals.run_config import build_run_config

RUN = {
    "profile": "p",
    "models": {"tiny": {"path": "x"}, "other": {"path": "y"}},
    "methods": {"full": {}},
    "budgets": [0.5],
    "suites": {"mini_recall": {"contexts": [256], "samples": 1}},
}
DEFAULTS = {"model": "tiny", "target_heads": 6, "contexts": [256, 512]}


def read(values: dict[str, Any]) -> IdentificationSpec:
    return build_run_config(RUN | {"identification": values}, "config.yaml").identification


def test_defaults_are_shared_and_overridden() -> None:
    runs = read(
        {
            "defaults": DEFAULTS | {"steps": 60},
            "runs": {
                "kuma": {"seed": 3},
                "code": {"objective": "code", "inherit": "previous_layer", "selection": "code", "model": "other"},
                "duo": {"kind": "direct", "objective": "l1", "sparse": "streaming"},
                "long": {"steps": 3000, "contexts": [300], "lambda_lr": 0.5, "lr": 0.03},
            },
        }
    ).runs
    kuma, code, duo, long = (runs[name] for name in ("kuma", "code", "duo", "long"))
    assert (kuma.seed, kuma.steps, kuma.contexts, kuma.target_heads) == (3, 60, (256, 512), 6)
    assert (kuma.gate_rate, kuma.lagrange_rate(40, 16), kuma.role_kind) == (0.01, 6.25 / 60, "hardkuma")
    assert (kuma.first_role_layer, kuma.first_counted_layer) == (1, 1)
    assert (code.model, code.lagrange_rate(8, 2), code.first_role_layer, code.first_counted_layer) == (
        "other",
        0.001,
        1,
        0,
    )
    assert (duo.role_kind, duo.gate_rate, duo.first_role_layer, duo.first_counted_layer) == ("duo", 0.02, 0, 0)
    assert (long.contexts, long.lagrange_rate(8, 2), long.gate_rate) == ((300, 300), 0.5, 0.03)


def test_nothing_configured_is_nothing_to_do() -> None:
    assert read({}) == build_run_config(RUN, "config.yaml").identification == IdentificationSpec()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stpes": 10}, r"identification\.runs\.a\.stpes: unknown setting 'stpes'; nearest valid name: 'steps'"),
        ({"kind": "hardkumo"}, "unknown kind 'hardkumo'; nearest valid name: 'hardkuma'"),
        ({"model": "tinny"}, "unknown model 'tinny'; nearest valid name: 'tiny'"),
        ({"data": "passkeys"}, "nearest valid name: 'passkey'"),
        ({"contexts": [512, 256]}, "the shortest and the longest"),
        ({"ratio": 1.5}, "less than or equal to 1"),
        ({"layer0_gates": 1}, "boolean"),
        ({"data": "hotpotqa", "batch": 4}, "differ in length"),
        ({"kind": "direct"}, "no P"),
        ({"objective": "l1"}, "kind 'direct'"),
        ({"kind": "direct", "objective": "l1", "sparse": "streaming", "selection": "code"}, "select nothing"),
    ],
)
def test_wrong_runs_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read({"runs": {"a": DEFAULTS | changes}})
    assert str(raised.value).startswith("config.yaml: identification.runs.a")


def test_wrong_overlap_is_refused() -> None:
    good = {"model": "tiny", "contexts": [512], "k": [32]}
    assert read({"overlap": good}).overlap.task == "mini_longgen_15"
    for changes, message in (
        ({"k": [512]}, "fewer than the shortest context"),
        ({"task": "mini_longgen_16"}, "nearest valid name: 'mini_longgen_15'"),
        ({"sample": 3}, "nearest valid name: 'samples'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read({"overlap": good | changes})


def test_reading_a_configuration_does_not_import_torch() -> None:
    code = "import sys, longdecode.evals.identification_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    page = page.partition("## Head roles")[2].partition("## Draft heads")[0]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == {item.name for item in fields(IdentificationRun)} - {"name"}
