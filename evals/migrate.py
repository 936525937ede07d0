"""``python -m longdecode.evals.migrate FILE``: print a configuration of an earlier version in today's keys.

Stored configurations (``results/*/config.yaml``) are read through ``migrated``; what has no key today is left out and
named on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from longdecode.evals.run_config import RunConfig
from longdecode.evals.training_spec import FORK_RECIPES, ROLE_RECIPES
from longdecode.evals.yaml_file import read_yaml

RENAMED = {"target_heads": "heads", "rows": "batch"}
SUITES = {"longbench_plain": ("longbench", "prompt")}
"""Suites of earlier versions that are a protocol of another suite today."""


def migrated(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a configuration in today's keys, and the dotted keys that were left out."""
    found = dict(values)
    roles, forks = found.pop("identification", None) or {}, found.pop("adaptation", None) or {}
    training = _trainings(roles, ROLE_RECIPES, {"kind": "hardkuma"}) | _trainings(forks, FORK_RECIPES, {})
    found |= {"training": training} if training else {}
    if overlap := roles.get("overlap"):
        found["overlap"] = {overlap["model"]: overlap["contexts"]}
    if locality := forks.get("locality"):
        found["locality"] = locality["labels"]
    for old, (suite, question) in SUITES.items():
        if old in found.get("suites", {}):
            found["suites"] = {suite if name == old else name: spec for name, spec in found["suites"].items()}
            found["suites"][suite] = {**found["suites"][suite], "question": question}
    looked_at = found.get("retrospection") or {}
    if "labels" in looked_at:
        tasks = {model: looked_at.get("task", "mini_longgen_45") for model in looked_at["models"]}
        tasks |= looked_at.get("tasks") or {}
        found["retrospection"] = {**looked_at, "models": tasks, "variants": looked_at["labels"]}
    if texts := found.get("generation"):
        runs = {name: {"variants": run.get("labels", []), **run} for name, run in (texts.get("runs") or {}).items()}
        found["generation"] = {**texts, "runs": runs}
    schema = TypeAdapter(RunConfig).json_schema()
    left_out: list[str] = []
    if isinstance(found.get("throughput"), Mapping):  # too many places became grids to guess them
        left_out += [f"throughput.{key}" for key in found.pop("throughput")]
    return _known(found, schema, schema["$defs"], "", left_out), left_out


def _trainings(
    old: Mapping[str, Any], recipes: Mapping[str, Mapping[str, str]], implied: Mapping[str, str]
) -> dict[str, Any]:
    """Return the entries of ``training`` for runs over their defaults; runs that differ in the seed are one entry."""
    named = {key for recipe in recipes.values() for key in recipe} | set(implied)
    found: dict[str, Any] = {}
    for name, run in (old.get("runs") or {}).items():
        given = {**(old.get("defaults") or {}), **(run or {})}
        parts = {key: given.pop(key) for key in named & set(given)}
        recipe = next((r for r, recipe in recipes.items() if {**implied, **recipe} == {**implied, **parts}), None)
        seed = given.pop("seed", 0)
        entry = {"recipe": recipe or "?", **{RENAMED.get(key, key): value for key, value in given.items()}}
        if {"sink", "recent"} & set(given):
            entry["window"] = [given.get("sink", 128), given.get("recent", 256)]
        if "length" in given:
            entry["contexts"] = [given["length"]]
        if not name.endswith(str(seed)):
            found[name] = entry
            continue
        base = found.setdefault(name.removesuffix(str(seed)), {**entry, "seeds": []})
        base["seeds"].append(seed)
    return found


def _known(value: Any, node: Mapping[str, Any], shared: Mapping[str, Any], key: str, left_out: list[str]) -> Any:
    """Return a value without the keys that the schema does not have at its place."""
    parts = [part for part in node.get("anyOf", ()) if part.get("type") != "null"] or [node]
    resolved = [shared[part["$ref"].rpartition("/")[2]] if "$ref" in part else part for part in parts]
    wanted = "object" if isinstance(value, Mapping) else "array"
    node = next((part for part in resolved if part.get("type") == wanted), resolved[0])
    if isinstance(value, list) and isinstance(node.get("items"), dict):
        return [_known(item, node["items"], shared, key, left_out) for item in value]
    if not isinstance(value, Mapping):
        return value
    own = node.get("properties", {})
    further: Iterable[Any] = (node.get("patternProperties") or {"": node.get("additionalProperties")}).values()
    other = next(iter(further))
    kept = {}
    for name, inner in value.items():
        inner_key = f"{key}.{name}" if key else str(name)
        if name in own or other is True:
            kept[name] = _known(inner, own.get(name, {}), shared, inner_key, left_out)
        elif isinstance(other, Mapping):
            kept[name] = _known(inner, other, shared, inner_key, left_out)
        elif node:
            left_out.append(inner_key)
    return kept if node else value


def main(arguments: list[str]) -> None:
    """Print each file in today's keys; with ``--write`` rewrite it."""
    for path in (Path(name) for name in arguments if name != "--write"):
        values, left_out = migrated(read_yaml(path))
        text = yaml.safe_dump(values, sort_keys=False, width=120)
        print(*(f"{path}: no key today: {key}" for key in left_out), sep="\n", file=sys.stderr)
        if "--write" in arguments:
            path.write_text(text, encoding="utf-8")
        else:
            print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
