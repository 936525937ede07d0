"""The role files that ship with the miniature: of its shape, and those of the committed trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from longdecode.engine.config_reader import read_config
from longdecode.methods.head_roles import read_role_file, resolve_roles

ROOT = Path(__file__).parents[3]
RUNS = ROOT / "results" / "h200" / "identification" / "miniature"
SHIPPED = {"hardkuma": "hardkuma0", "hard_concrete": "hard_concrete0", "direct": "direct0", "duo": "duo"}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_map_is_that_of_its_training_and_fits_the_model(name: str) -> None:
    path = ROOT / "models" / "miniature" / "roles" / f"{name}.json"
    assert path.read_bytes() == (RUNS / SHIPPED[name] / "roles.json").read_bytes()
    file, layer0 = read_role_file(path), name != "duo"
    config = read_config(ROOT / "models" / "miniature" / "weights")
    stored = resolve_roles(str(path), None, 0, config, layer0=layer0)
    count = sum(map(sum, stored))
    assert count == (16 if layer0 else 24) and file.kind == name
    assert resolve_roles(str(path), count, 0, config, layer0=layer0) == stored


def test_every_shipped_map_is_known() -> None:
    assert {path.stem for path in (ROOT / "models" / "miniature" / "roles").glob("*.json")} == set(SHIPPED)
