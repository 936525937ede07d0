"""Compare a built checkpoint's logits in the engine with transformers', on as many layers as fit in memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.generation import Generator, Request
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.engine.weights import load_decoder

LOGIT_TOLERANCE = 1e-4
"""Largest float32 difference to transformers that is rounding: 3e-5 was seen at a standard deviation of 3.2."""
CHECKED_BYTES = 2_000_000_000
"""Float32 weights of the layers that are compared: all of a 0.5B model, the first five layers of the 1.5B."""
_TEXT = "The quick brown fox jumps over the lazy dog. " * 8


def largest_logit_difference(folder: Path, checked_bytes: int = CHECKED_BYTES) -> tuple[float, int]:
    """Return the largest difference of float32 logits after a short text, and how many first layers were compared."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ids = load_tokenizer(folder).encode(_TEXT)[: config["max_position_embeddings"] - 1]
    layers = _layers_within(folder, config, checked_bytes)
    if layers == config["num_hidden_layers"]:
        return logit_difference(folder, ids), layers
    with tempfile.TemporaryDirectory(prefix=".check.", dir=folder.parent) as scratch:
        _write_first_layers(folder, config, layers, Path(scratch))
        return logit_difference(Path(scratch), ids), layers


@torch.no_grad()
def logit_difference(folder: Path, ids: Sequence[int]) -> float:
    """Return the largest difference to transformers of the engine's float32 logits after ``ids``."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = model(torch.tensor([list(ids)])).logits[0, -1].clone()
    del model
    generator = Generator(load_decoder(folder, device="cpu", dtype=torch.float32))
    ours = generator.prefill([Request(tuple(ids), max_new_tokens=1)]).logits[0]
    return float((ours - theirs).abs().max())


def _layer_of(name: str) -> int:
    """Return the layer of a tensor, -1 of one outside of the layers."""
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] else -1


def _layers_within(folder: Path, config: dict[str, Any], limit: int) -> int:
    """Return how many first layers, at least one, take ``limit`` bytes as float32 with embedding and norm."""
    from safetensors import safe_open

    sizes: dict[int, int] = {}
    with safe_open(str(folder / "model.safetensors"), framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 (the handle is no mapping)
            size = torch.Size(weights.get_slice(name).get_shape()).numel() * 4
            sizes[_layer_of(name)] = sizes.get(_layer_of(name), 0) + size
    fitting = (limit - sizes[-1]) // sizes[0]
    return int(min(config["num_hidden_layers"], max(1, fitting)))


def _write_first_layers(folder: Path, config: dict[str, Any], layers: int, target: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(str(folder / "model.safetensors"), framework="pt") as weights:
        kept = {name: weights.get_tensor(name) for name in weights.keys() if _layer_of(name) < layers}  # noqa: SIM118
        save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    shorter = config | {"num_hidden_layers": layers}
    if types := config.get("layer_types"):
        shorter["layer_types"] = types[:layers]
    (target / "config.json").write_text(json.dumps(shorter), encoding="utf-8")
