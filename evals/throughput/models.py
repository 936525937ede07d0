"""The models that are timed: a shape with random weights, or a checkpoint of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from longdecode.engine.config_reader import parse_config, read_config, resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import DeviceMemoryError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import load_decoder, random_decoder
from longdecode.evals import provenance
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.shapes import RAW_SHAPES


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A decoder on the device, and what a record says about it.

    ``limit`` is the longest context it takes: a checkpoint's own, none for random weights, whose positions mean
    nothing.
    """

    name: str
    weights: Literal["random", "checkpoint"]
    decoder: Decoder
    limit: int | None

    @property
    def config(self) -> ModelConfig:
        """Return the decoder's shape."""
        return self.decoder.config

    @property
    def read_bytes(self) -> int:
        """Return bytes of weights that a step reads."""
        return self.decoder.weights.nbytes()

    @property
    def resident_bytes(self) -> int:
        """Return bytes of weights on the device: the embedding too, of which a step reads a few rows only."""
        weights = self.decoder.weights
        return weights.nbytes() + (0 if weights.embedding is weights.lm_head else weights.embedding.nbytes)


def shape_config(name: str, positions: int = 0) -> ModelConfig:
    """Return the ``ModelConfig`` of a shape, with room for at least this many positions."""
    config = parse_config(RAW_SHAPES[name], f"shape {name}")
    return replace(config, max_positions=max(config.max_positions, positions))


def load_model(run: RunConfig, name: str, device: torch.device, dtype: torch.dtype, positions: int) -> TimedModel:
    """Load a model of the configuration by its key, or make a shape with random weights.

    Args:
        positions: the longest context that will be timed.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        DeviceMemoryError: a shape's weights do not fit the device.
    """
    if name in run.models:
        spec = run.models[name]
        folder = resolve_checkpoint(spec.path, spec.revision)
        limit = read_config(folder).max_positions
        decoder = load_decoder(folder, device=device, dtype=dtype)
        return TimedModel(name, "checkpoint", decoder, limit)
    config = shape_config(name, positions)
    _refuse_if_too_large(config, device, dtype)
    decoder = random_decoder(config, run.seed, device, dtype)
    return TimedModel(name, "random", decoder, None)


def model_hash(run: RunConfig, name: str) -> str:
    """Hash what identifies a model's weights, without loading them."""
    if name in run.models:
        return provenance.checkpoint_hash(resolve_checkpoint(run.models[name].path, run.models[name].revision))
    return hash_texts([name, str(run.seed)])


def parameters(config: ModelConfig) -> int:
    """Count the weights of a decoder of this shape, norms left out."""
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (heads + 3 * config.intermediate_size)
    tables = 1 if config.tie_embeddings else 2
    return config.num_layers * layer + tables * config.vocab_size * config.hidden_size


def _refuse_if_too_large(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
    if device.type != "cuda":
        return
    need, (free, _) = parameters(config) * dtype.itemsize, torch.cuda.mem_get_info(device)
    if need > free:
        raise DeviceMemoryError(f"weights of {need:,} bytes; {free:,} are free on {device}")
