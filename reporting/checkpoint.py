"""A model in a few words, from its folder's config and the headers of its weights; nothing is loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

MINIATURE_BELOW = 100_000_000
_SHAPE = {"num_hidden_layers": "layers", "num_attention_heads": "query heads", "num_key_value_heads": "KV heads"}


def describe(name: str, spec: Any) -> str:
    """Name, size and shape of a model, as far as a local folder tells.

    Args:
        name: the model's name in the configuration.
        spec: its entry there, with ``path`` and perhaps ``revision``.
    """
    path = Path(str((spec or {}).get("path", "")))
    revision = (spec or {}).get("revision")
    if not (path / "config.json").is_file():
        return f"{name} ({path}{f' at {revision}' if revision else ''})" if str(path) != "." else name
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    count = sum(_parameters(file) for file in sorted(path.glob("*.safetensors")))
    size = [f"{count / 1e6:.3g} M parameters"] if count else []
    shape = [f"{config[key]} {words}" for key, words in _SHAPE.items() if key in config]
    kind = "a miniature model: " if 0 < count < MINIATURE_BELOW else ""
    return f"{name} ({kind}{', '.join(size + shape)})"


def _parameters(file: Path) -> int:
    """Elements of every tensor in a safetensors file, from its header: 8 bytes of length, then JSON."""
    with file.open("rb") as handle:
        header = json.loads(handle.read(int.from_bytes(handle.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
