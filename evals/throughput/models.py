"""The models that are timed: a shape with random weights, or a checkpoint of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from longdecode.engine.config_reader import parse_config, read_config, resolve_checkpoint
from longdecode.engine.decoder import Decoder
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


def config_of(run: RunConfig, name: str, positions: int = 0) -> ModelConfig:
    """Return the ``ModelConfig`` of a model of the configuration or of a shape; nothing is loaded."""
    spec = run.models.get(name)
    return read_config(resolve_checkpoint(spec.path, spec.revision)) if spec else shape_config(name, positions)


def load_model(run: RunConfig, name: str, device: torch.device, dtype: torch.dtype, positions: int) -> TimedModel:
    """Load a model of the configuration by its key, or make a shape with random weights.

    Args:
        positions: the longest context that will be timed.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
    """
    config = config_of(run, name, positions)
    if name not in run.models:
        return TimedModel(random_decoder(config, run.seed, device, dtype), None)
    folder = resolve_checkpoint(run.models[name].path, run.models[name].revision)
    return TimedModel(load_decoder(folder, device=device, dtype=dtype), config.max_positions)


def model_hash(run: RunConfig, name: str) -> str:
    """Hash what identifies a model's weights, without loading them."""
    if name in run.models:
        return provenance.checkpoint_hash(resolve_checkpoint(run.models[name].path, run.models[name].revision))
    return hash_texts([name, str(run.seed)])
