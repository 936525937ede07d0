"""The key ``training``: a recipe with sizes and seeds; wrong entries refused with the nearest name."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from longdecode.engine.errors import ConfigError
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.training_spec import RoleTraining
from small_run import run_values

ROLES = {"recipe": "hardkuma", "model": "tiny", "heads": 6, "contexts": [256, 512]}


def read(**training: dict[str, Any]) -> RunConfig:
    models = {"tiny": {"path": "x"}, "other": {"path": "y"}}
    return build_run_config(run_values(models=models, training=training), "config.yaml")


def test_a_recipe_brings_its_parts_and_an_entry_its_sizes() -> None:
    gates = ("hardkuma", "hard_concrete", "direct")
    runs = read(
        kuma=ROLES | {"seeds": [0, 3], "steps": 60, "window": [4, 12]},
        code=ROLES | {"recipe": "hardkuma_released", "model": "other"},
        duo=ROLES | {"recipe": "duo"},
        long=ROLES | {"contexts": [300], "lr": 0.03},
        **{recipe: ROLES | {"recipe": recipe} for recipe in gates},
        nosa={"recipe": "nosa_dma_head", "model": "tiny", "contexts": [512], "batch": 1, "seeds": [1]},
    )
    assert list(runs.role_trainings) == ["kuma0", "kuma3", "code", "duo", "long", *gates]
    kuma, code, duo, long = (runs.role_trainings[name] for name in ("kuma3", "code", "duo", "long"))
    assert (kuma.name, kuma.seed, kuma.steps, kuma.contexts, kuma.target_heads) == ("kuma3", 3, 60, (256, 512), 6)
    assert (kuma.sink, kuma.recent, code.sink, code.recent) == (4, 12, 128, 256)
    assert (kuma.gate_rate, kuma.role_kind, kuma.first_role_layer) == (0.01, "hardkuma", 1)
    assert (code.model, code.objective, code.first_role_layer) == ("other", "code", 1)
    assert (duo.role_kind, duo.objective, duo.gate_rate, duo.first_role_layer) == ("duo", "l1", 0.02, 0)
    only_the_gate = {name: replace(runs.role_trainings[name], name="", kind="") for name in gates}
    assert len(set(only_the_gate.values())) == 1 and (long.contexts, long.gate_rate) == ((300, 300), 0.03)
    (fork,) = runs.fork_trainings.values()
    assert (fork.name, fork.attention, fork.head, fork.seed) == ("nosa1", "nosa", "dma", 1)
    assert (fork.length, fork.budget, fork.rows, fork.steps, fork.log_every) == (512, 128, 1, 600, 60)
    assert not read().role_trainings and not read().fork_trainings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stpes": 10}, r"training\.a\.stpes: unknown key 'stpes'; nearest valid name: 'steps'"),
        ({"recipe": "hardkumo"}, "unknown recipe 'hardkumo'; nearest valid name: 'hardkuma'"),
        ({"model": "tinny"}, "unknown model 'tinny'; nearest valid name: 'tiny'"),
        ({"data": "passkeys"}, "nearest valid name: 'passkey'"),
        ({"data": "books"}, "unknown data of hardkuma 'books'"),
        ({"contexts": [512, 256]}, "the shortest and the longest"), ({"ratio": 1.5}, "less than or equal to 1"),
        ({"heads": None}, r"training\.a\.heads: is missing"),
        ({"data": "hotpotqa", "batch": 4}, "differ in length"), ({"seeds": [1, 1]}, "twice"),
        ({"recipe": "nosa"}, r"training\.a\.heads: is a setting of head roles; nosa has none"),
        ({"recipe": "nosa", "heads": None}, "a fork has one length"),
    ],
)  # fmt: skip
def test_wrong_trainings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read(a=ROLES | changes)
    assert str(raised.value).startswith("config.yaml: training.a")


def test_reading_a_configuration_does_not_import_torch() -> None:
    code = "import sys, longdecode.evals.training_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    page = page.partition("## Head roles")[2].partition("## Draft heads")[0]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == {item.name for item in fields(RoleTraining)} - {"name"}
