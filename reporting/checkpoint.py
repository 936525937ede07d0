"""Describe a model in a few words, from its folder's config and the headers of its weights; nothing is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.engine.model_cache import MINIATURE_SEED, built_model

MINIATURE_BELOW = 100_000_000
_SHAPE = {"num_hidden_layers": "layers", "num_attention_heads": "query heads", "num_key_value_heads": "KV heads"}


@dataclass(frozen=True, slots=True)
class ModelWords:
    """A model in words.

    Args:
        short: for captions.
        shape: layers and heads, where a local folder tells; empty elsewhere.
        miniature: whether it is known to be a small model whose scores say nothing of large ones.
    """

    short: str
    shape: str
    miniature: bool


def describe(name: str, spec: Any) -> ModelWords:
    """Return name, size and shape of a model, as far as a local folder tells.

    Args:
        name: the model's name in the configuration.
        spec: its entry there, with ``path`` and perhaps ``revision``.
    """
    path = str((spec or {}).get("path", ""))
    revision = (spec or {}).get("revision")
    folder = built_model(path) or Path(path)
    if not (folder / "config.json").is_file():
        origin = " at ".join(part for part in (path, revision) if part)
        return ModelWords(f"{name} ({origin})" if origin else name, "", bool(MINIATURE_SEED.fullmatch(path)))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    count = sum(_parameters(file) for file in sorted(folder.glob("*.safetensors")))
    shape = ", ".join(f"{config[key]} {words}" for key, words in _SHAPE.items() if key in config)
    short = f"{name} ({count / 1e6:,.3g} M parameters)" if count else name
    return ModelWords(short, shape, 0 < count < MINIATURE_BELOW)


def _parameters(file: Path) -> int:
    """Elements of every tensor in a safetensors file, from its header: 8 bytes of length, then JSON."""
    with file.open("rb") as handle:
        header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def timed_models(timed: Iterable[str], known: Mapping[str, Any]) -> dict[str, ModelWords]:
    """Return timed models in words; shapes that only kernels were timed at are named with the kernels."""
    return {
        name: describe(name, known[name])
        if name in known
        else ModelWords(f"{name.removesuffix('-shape')} shape, random weights", "", False)
        for name in timed
    }
