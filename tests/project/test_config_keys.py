"""A configuration has few keys, each of them explained and set by some configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from longdecode.evals.run_config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
MOST = 90
SET_BY_USERS = {"revision"}
"""Keys that no configuration here sets: a checkpoint of the hub at a commit."""


def names(value: Any) -> Iterator[str]:
    """Every key of nested mappings and lists."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield str(key)
        yield from names(inner)


def config_keys() -> list[str]:
    """Every key of a configuration, those of a part under its type's name."""
    schema = TypeAdapter(RunConfig).json_schema()
    parts = {"": schema, **schema["$defs"]}
    return [f"{part}.{key}".lstrip(".") for part, node in parts.items() for key in node.get("properties", ())]


def test_there_are_few_keys_and_the_readme_explains_each() -> None:
    keys = config_keys()
    assert 70 < len(keys) <= MOST
    words = set(re.findall(r"`\{?([a-z_]+)", (ROOT / "config" / "README.md").read_text(encoding="utf-8")))
    words |= set(re.findall(r"[{ ]([a-z_]+)[:,}]", (ROOT / "config" / "README.md").read_text(encoding="utf-8")))
    assert not {key for key in keys if key.rpartition(".")[2] not in words}


def test_each_key_is_set_by_some_configuration() -> None:
    files = [path for path in (ROOT / "config").rglob("*.yaml") if path.name != "sizes.yaml"]
    used = {name for path in files for name in names(yaml.safe_load(path.read_text(encoding="utf-8")))}
    assert not {key.rpartition(".")[2] for key in config_keys()} - used - SET_BY_USERS
