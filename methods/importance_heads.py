"""Importance heads: where they come from, and how they are read, checked and moved to a device."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from longdecode.engine.errors import CheckpointError, ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.importance import FORMS, ImportanceWeights

TRAIN_COMMAND = "snakemake nosa_train --config profile=nosa"
_SOURCE = re.compile(r"model|zero|random:\d+")


class ImportanceHeads:
    """The importance heads of every layer, ``delta`` ``[L, Hkv, Hkv * D]`` and ``scale`` ``[L, Hkv]``, float32.

    Source: NOSA's released code (thunlp/NOSA 94d5f75): a map without bias from the values of all KV heads to one
    number a KV head, and a factor a KV head.
    """

    def __init__(self, delta: Tensor, scale: Tensor, form: str = "ed_dma"):
        self.delta = delta.float().contiguous()
        self.scale = scale.float().contiguous()
        self.form = form
        self._on: dict[torch.device, list[ImportanceWeights]] = {}

    def layer(self, layer: int, device: torch.device) -> ImportanceWeights:
        """Return the weights of one layer on a device, copied there once."""
        if device not in self._on:
            delta, scale = self.delta.to(device), self.scale.to(device)
            self._on[device] = [ImportanceWeights(*pair, self.form) for pair in zip(delta, scale, strict=True)]
        return self._on[device][layer]


def find_heads(source: str, config: ModelConfig, method: str) -> ImportanceHeads:
    """Return the importance heads that a method's ``heads`` names.

    Args:
        source: ``model``, the checkpoint's own; ``zero``, all importances equal (newer blocks win); ``random:<seed>``,
            for checks and timing.
        config: the model.
        method: for messages.

    Raises:
        ConfigError: the source is none of these.
        UnsupportedCellError: the checkpoint has no importance heads.
        CheckpointError: the checkpoint's heads have another shape, or cannot be read.
    """
    if not _SOURCE.fullmatch(source):
        raise ConfigError(f"{method}: heads = {source!r}; model, zero or random:<seed> is needed")
    layers, heads, joined = config.num_layers, config.num_kv_heads, config.num_kv_heads * config.head_dim
    if source == "model":
        if not config.importance_file:
            raise UnsupportedCellError(
                f"{method}: this checkpoint has no importance heads; `{TRAIN_COMMAND}` trains some, "
                "heads: zero or heads: random:<seed> run without"
            )
        return read_heads(Path(config.importance_file), config)
    if source == "zero":
        return ImportanceHeads(torch.zeros(layers, heads, joined), torch.zeros(layers, heads))
    generator = torch.Generator().manual_seed(int(source.partition(":")[2]))
    delta = torch.randn(layers, heads, joined, generator=generator) * joined**-0.5
    return ImportanceHeads(delta, torch.randn(layers, heads, generator=generator))


def read_heads(file: Path, config: ModelConfig) -> ImportanceHeads:
    """Read importance heads from a safetensors file with ``delta`` and ``scale``.

    Raises:
        CheckpointError: the file cannot be read, lacks one of them, or they have another model's shape.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt", device="cpu") as tensors:
            delta, scale = tensors.get_tensor("delta"), tensors.get_tensor("scale")
            form = (tensors.metadata() or {}).get("form", "ed_dma")
    except (OSError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{file}: importance heads cannot be read: {type(error).__name__}: {error}") from error
    layers, heads, joined = config.num_layers, config.num_kv_heads, config.num_kv_heads * config.head_dim
    if tuple(delta.shape) != (layers, heads, joined) or tuple(scale.shape) != (layers, heads):
        raise CheckpointError(
            f"{file}: importance heads delta {list(delta.shape)} and scale {list(scale.shape)}; "
            f"this model needs {[layers, heads, joined]} and {[layers, heads]}"
        )
    if form not in FORMS:
        raise CheckpointError(f"{file}: importance of form {form!r}; {', '.join(FORMS)} are known")
    return ImportanceHeads(delta, scale, form)


def write_heads(file: Path, delta: Tensor, scale: Tensor, form: str = "ed_dma") -> None:
    """Write importance heads as ``read_heads`` reads them."""
    from safetensors.torch import save_file

    tensors = {"delta": delta, "scale": scale}
    save_file(
        {name: x.detach().to("cpu", torch.float32).contiguous() for name, x in tensors.items()}, file, {"form": form}
    )
    file.chmod(0o644)
