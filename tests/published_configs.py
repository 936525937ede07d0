"""Keys and values of published config.json files, which ``published_configs.yaml`` holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_WRITTEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _whole(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the config that an entry of the file changes, changed."""
    base, without = RUNNABLE.get(changes.pop("like", ""), {}), changes.pop("without", [])
    return {key: value for key, value in (base | changes).items() if key not in without}


def as_transformers(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config under names of transformers, which has no MiniCPM but its arithmetic: Granite's."""
    if raw["model_type"] != "minicpm":
        return raw
    return raw | {
        "model_type": "granite", "embedding_multiplier": raw["scale_emb"],
        "residual_multiplier": raw["scale_depth"] / raw["num_hidden_layers"] ** 0.5,
        "logits_scaling": raw["hidden_size"] / raw["dim_model_base"],
        "attention_multiplier": (raw["hidden_size"] / raw["num_attention_heads"]) ** -0.5,
    }  # fmt: skip


RUNNABLE: dict[str, dict[str, Any]] = {}
"""Checkpoints that run, by name."""
for _name, _changes in _WRITTEN["runnable"].items():
    RUNNABLE[_name] = _whole(_changes)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {}
"""Checkpoints that are refused, and what the refusal says of a key."""
for _name, _changes in _WRITTEN["refused"].items():
    _says = _changes.pop("says")
    REFUSED[_name] = _whole(_changes), _says
MISTRAL = RUNNABLE["Mistral-7B-Instruct-v0.2"]
