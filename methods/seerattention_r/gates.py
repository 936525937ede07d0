"""Attention gates: where they come from, how they are read and checked, and what they make of queries and keys."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import CheckpointError, ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.rope import inverse_frequencies
from longdecode.kernels.layout import accumulator

POOLED = 3
"""Keys of a block are pooled by their maximum, minimum and mean, one behind the other."""
EPS = 1e-6
"""Added to the mean square of the gates' norms, as released."""
_PREFIX = "model.layers.{}.self_attn.attn_gate."
_NAMES = {
    "query": "attngate_linear_q.weight", "key": "attngate_linear_k.weight",
    "query_norm": "attngate_qnorm.weight", "key_norm": "attngate_knorm.weight",
}  # fmt: skip
_SETTINGS = {
    "seerattn_k_seq_pooling_type": "Kmaxminavg", "seerattn_q_head_pooling_type": "Qproj", "seerattn_use_rope": True,
}  # fmt: skip
"""Settings of a released gate that are supported."""


@dataclass(frozen=True, slots=True)
class LayerGate:
    """The gate of one layer; ``D`` is also its width.

    ``query`` ``[Hkv, G, D, D]`` joins a group's queries, ``key`` ``[Hkv, 3 * D, D]`` the pooled keys of a block; the
    norms ``[D]`` come behind either map, or are left out.

    Source: Gao et al. 2025 (arXiv 2506.08889), equation 1, and the released code (microsoft/SeerAttention aba03e3).
    """

    query: Tensor
    key: Tensor
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None

    @property
    def parts(self) -> list[Tensor]:
        """The weights that there are, in the order of the fields."""
        return [part for field in fields(LayerGate) if (part := getattr(self, field.name)) is not None]

    def of_queries(self, q: Tensor) -> Tensor:
        """Return ``[B, Hkv, T, D]`` of unrotated queries ``[B, Hq, T, D]``, to be rotated by their position."""
        grouped = q.unflatten(1, self.query.shape[:2]).transpose(2, 3).flatten(3)
        return _normed(grouped @ self.query.flatten(1, 2), self.query_norm)

    def of_blocks(self, keys: Tensor) -> Tensor:
        """Return ``[B, Hkv, N, D]`` of unrotated keys ``[B, Hkv, N, size, D]``, to be rotated by a block's position."""
        pooled = torch.cat((keys.amax(dim=3), keys.amin(dim=3), keys.mean(dim=3)), dim=-1)
        return _normed(pooled @ self.key, self.key_norm)


class Rotation:
    """The model's rotation by position, and back; its factor on cosines and sines (YaRN) included."""

    def __init__(self, config: ModelConfig):
        self.frequencies, self.factor = inverse_frequencies(config)
        self._copies: dict[torch.device, Tensor] = {}

    def forth(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines ``[B, T, D]`` that rotate by positions ``[B, T]``."""
        cos, sin = self._at(positions)
        return cos * self.factor, sin * self.factor

    def back(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines ``[B, T, D]`` that undo a rotation by positions ``[B, T]``."""
        cos, sin = self._at(positions)
        return cos / self.factor, -sin / self.factor

    def _at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if positions.device not in self._copies:  # a step that is captured as a CUDA graph copies nothing from the host
            self._copies[positions.device] = self.frequencies.to(positions.device)
        angles = positions[..., None] * self._copies[positions.device]
        return torch.cat((angles, angles), dim=-1).cos(), torch.cat((angles, angles), dim=-1).sin()


class Gates:
    """The gates of all layers, float32 on the CPU, copied once to every device and dtype that asks."""

    def __init__(self, layers: list[LayerGate]):
        self.layers = layers
        self._copies: dict[tuple[int, torch.device, torch.dtype], LayerGate] = {}

    def layer(self, layer: int, like: Tensor) -> LayerGate:
        """Return the gate of one layer on the device and in the dtype of a tensor."""
        key = layer, like.device, like.dtype
        if key not in self._copies:
            parts = (getattr(self.layers[layer], field.name) for field in fields(LayerGate))
            copied: list[Any] = [part if part is None else part.to(like) for part in parts]
            self._copies[key] = LayerGate(*copied)
        return self._copies[key]


def find_gates(source: str, block_size: int, config: ModelConfig) -> Gates:
    """Return the gates that a method's parameter names.

    Args:
        source: a file of weights (``.safetensors``, or ``.pth`` as released), or ``random:<seed>`` for gates that have
            learned nothing.
        block_size: tokens in a block; a config.json beside the file must agree.
        config: the model.

    Raises:
        ConfigError: the source is neither.
        UnsupportedCellError: none are named, or gates of another block size or form.
        CheckpointError: the file cannot be read, or is another model's.
    """
    kind, _, seed = source.partition(":")
    if not source:
        raise UnsupportedCellError(
            "seerattention_r: no gates are named; gates: FILE takes the model's own, random:<seed> is for "
            "checks and times (docs/models.md)"
        )
    if kind == "random" and seed.isdecimal():
        return new_gates(config, int(seed))
    path = Path(source)
    if path.suffix not in (".safetensors", ".pth"):
        raise ConfigError(
            f"seerattention_r: gates = {source!r}; a file of gates (.safetensors, .pth) or random:<seed> is needed"
        )
    _require_form(path.with_name("config.json"), block_size)
    return read_gates(path, config)


def new_gates(config: ModelConfig, seed: int) -> Gates:
    """Return gates that have learned nothing: random maps, norms of one."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(shape: tuple[int, ...]) -> Tensor:
        return torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * shape[-2] ** -0.5

    return Gates([LayerGate(*map(drawn, _shapes(config).values())) for _ in range(config.num_layers)])


def write_gates(path: Path, layers: Sequence[LayerGate]) -> None:
    """Write gates under the released names, as ``read_gates`` reads them."""
    from safetensors.torch import save_file

    found = {
        f"{_PREFIX.format(layer)}{name}": part.detach().cpu().contiguous()
        for layer, gate in enumerate(layers)
        for name, part in zip(_NAMES.values(), gate.parts, strict=True)
    }
    save_file(found, path)


def read_gates(path: Path, config: ModelConfig) -> Gates:
    """Read the gates of every layer of a model.

    Raises:
        CheckpointError: the file cannot be read, a weight is missing or more are there, or a shape is another model's.
    """
    tensors = _tensors(path)
    layers = []
    for layer in range(config.num_layers):
        prefix = _PREFIX.format(layer)
        parts: dict[str, Any] = {name: tensors.pop(prefix + key, None) for name, key in _NAMES.items()}
        for name, shape in _shapes(config).items():
            part = parts[name]
            if part is None and name.endswith("norm"):
                continue
            if part is None or tuple(part.shape) != shape:
                found = "is missing" if part is None else f"is {list(part.shape)}"
                raise CheckpointError(f"{path}: {prefix}{_NAMES[name]} {found}; this model needs {list(shape)}")
        layers.append(LayerGate(**parts))
    if tensors:
        raise CheckpointError(f"{path}: gates of another model: {next(iter(tensors))} is none of this one's")
    return Gates(layers)


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float() for name, tensor in found.items()}
    except (OSError, RuntimeError, AttributeError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: gates cannot be read: {type(error).__name__}: {error}") from error


def _require_form(described: Path, block_size: int) -> None:
    if not described.is_file():
        return
    said = json.loads(described.read_text(encoding="utf-8"))
    for name, wanted in {**_SETTINGS, "seerattn_gate_block_size": block_size}.items():
        if said.get(name, wanted) != wanted:
            raise UnsupportedCellError(f"seerattention_r: {described}: {name} is {said[name]!r}, not {wanted!r}")


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    heads, width = config.num_kv_heads, config.head_dim
    return {
        "query": (heads, config.group_size, width, width), "key": (heads, POOLED * width, width),
        "query_norm": (width,), "key_norm": (width,),
    }  # fmt: skip


def _normed(x: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return x
    wide = x.to(accumulator(x.dtype))
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS)).to(x.dtype) * weight
