"""Draft heads: small layers on the last hidden state whose tokens the model's own LM head reads off."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from torch.nn.functional import silu

from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import CheckpointError, ConfigError, DataUnavailableError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import model_hash
from longdecode.kernels.linear import linear
from longdecode.kernels.rms_norm import add_rms_norm

Kind = Literal["chained", "medusa"]
INIT_STD = 0.02
"""Spread of a linear layer's first weights, the ``initializer_range`` that checkpoints have."""
TRAIN_COMMAND = "snakemake tokenswift_train"


class HeadsFile(BaseModel):
    """Describe a heads file: ``<name>.json`` beside ``<name>.safetensors``.

    ``checkpoint`` is the hash of the model that the heads were trained on, ``tensors`` that of the other file; ``run``
    holds the training's settings and its last accuracies.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = Field(default=1, ge=1, le=1)
    kind: Kind
    model: str
    checkpoint: str
    hidden_size: int = Field(ge=1)
    heads: int = Field(ge=1)
    tensors: str
    run: dict[str, Any] = Field(default_factory=dict)


class DraftHeads(torch.nn.Module):
    """``count`` heads on a hidden state of ``hidden`` channels.

    ``chained`` (TokenSwift): ``z_i = z_{i-1} + W_i norm_in_i(z_{i-1})``, ``z_0`` the state before the final norm; the
    LM head reads ``norm_out_i(z_i)``. ``medusa``: ``h + silu(W_i h + b_i)`` of the state after the final norm, each
    head by itself. Head ``i`` proposes the token ``i`` places after the one that the model itself predicts.

    Source: TokenSwift (arXiv 2502.18890), section 3.1, norms from its released code; Cai et al. 2024, Medusa (arXiv
    2401.10774), section 2.1.1, with the LM head shared as in its newer trainer.
    """

    def __init__(self, kind: Kind, count: int, hidden: int, eps: float):
        super().__init__()
        self.kind, self.count, self.eps = kind, count, eps

        def parameter(*size: int, fill: float = 0.0) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.full(size, fill))

        self.linear = parameter(count, hidden, hidden)
        if kind == "chained":
            self.norm_in, self.norm_out = (parameter(count, hidden, fill=1.0) for _ in range(2))
        else:
            self.bias = parameter(count, hidden)

    @torch.no_grad()
    def initialise(self, how: Literal["normal", "zero"], seed: int, final_norm: Tensor) -> None:
        """Set the first weights.

        Args:
            how: ``normal`` draws linear layers and leaves norms at one, as released; ``zero`` starts every head at the
                model's own prediction: linear layers at zero, output norms at the final norm.
            seed: of the draw.
            final_norm: ``[H]``, the model's.
        """
        if how == "normal":
            self.linear.copy_(torch.randn(self.linear.shape, generator=torch.Generator().manual_seed(seed)) * INIT_STD)
        elif self.kind == "chained":
            self.norm_out.copy_(final_norm.expand_as(self.norm_out))

    def states(self, before_norm: Tensor, after_norm: Tensor) -> list[Tensor]:
        """Return what the LM head reads for each head.

        Args:
            before_norm: ``[..., H]``, the last layer's output.
            after_norm: ``[..., H]``, the same after the final norm.
        """
        if self.kind == "medusa":
            return [after_norm + silu(after_norm @ self.linear[head].T + self.bias[head]) for head in range(self.count)]
        if not torch.is_grad_enabled():
            return self._fast_chain(before_norm)
        z, found = before_norm, []
        for head in range(self.count):
            z = z + self._norm(z, self.norm_in[head]) @ self.linear[head].T
            found.append(self._norm(z, self.norm_out[head]))
        return found

    def _fast_chain(self, z: Tensor) -> list[Tensor]:
        """Chain by the engine's kernels, three launches a head, which have no gradient."""
        found = []
        for head in range(self.count):
            normed, _ = add_rms_norm(None, z, self.norm_in[head], self.eps)
            out, z = add_rms_norm(linear(normed, self.linear[head]), z, self.norm_out[head], self.eps)
            found.append(out)
        return found

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float() if x.dtype != torch.float64 else x
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * weight


def check_source(source: str) -> None:
    """Refuse a ``heads`` parameter that is neither empty, ``random:<seed>`` nor a file.

    Raises:
        ConfigError: as said.
    """
    kind, _, seed = source.partition(":")
    if source and not source.endswith(".json") and not (kind == "random" and seed.isdecimal()):
        raise ConfigError(f"heads = {source!r}: a heads file (*.json) or random:<seed> is needed")


def load_heads(source: str, kind: Kind, count: int, decoder: Decoder) -> DraftHeads:
    """Return the heads that a method's parameter names, on the decoder's device in its dtype.

    Args:
        source: a heads file (``*.json``), of which the first ``count`` heads are taken, or ``random:<seed>`` for heads
            that have learned nothing.

    Raises:
        DataUnavailableError: none are named, or the file is missing; the message names the command that makes one.
        CheckpointError: the file is broken, is of another kind or has fewer heads, or belongs to another checkpoint.
    """
    check_source(source)
    config = decoder.config
    if not source:
        raise DataUnavailableError(f"no {kind} heads are named; `{TRAIN_COMMAND}` trains them: set heads to its file")
    heads = DraftHeads(kind, count, config.hidden_size, config.rms_norm_eps)
    if source.startswith("random:"):
        heads.initialise("normal", int(source.partition(":")[2]), decoder.weights.final_norm)
    else:
        _read(Path(source), heads, decoder)
    return heads.requires_grad_(False).to(decoder.device, decoder.dtype)


def heads_bytes(kind: Kind, count: int, config: ModelConfig, bytes_per_element: int) -> int:
    """Return the bytes of ``count`` heads."""
    vectors = 2 if kind == "chained" else 1
    return count * config.hidden_size * (config.hidden_size + vectors) * bytes_per_element


def write_heads(path: Path, heads: DraftHeads, model: str, checkpoint: str, run: dict[str, Any]) -> None:
    """Write a heads file, the description last, each whole or not at all.

    Args:
        path: ``<name>.json``.
        model: what the checkpoint is called.
        checkpoint: its hash, of ``engine.weights.model_hash``.
        run: settings and results of the training.
    """
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = path.with_suffix(".safetensors")
    partial = path.with_suffix(".partial")
    save_file({name: value.detach().cpu().contiguous() for name, value in heads.state_dict().items()}, partial)
    digest = hashlib.sha256(partial.read_bytes()).hexdigest()
    partial.replace(tensors)
    described = HeadsFile(
        kind=heads.kind, model=model, checkpoint=checkpoint, hidden_size=heads.linear.shape[1], heads=heads.count,
        tensors=digest, run=run,
    )  # fmt: skip
    partial.write_text(described.model_dump_json(indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read_description(path: Path) -> HeadsFile:
    """Read ``<name>.json``.

    Raises:
        DataUnavailableError: it is missing.
        CheckpointError: it does not fit the schema.
    """
    try:
        return HeadsFile.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataUnavailableError(f"{path}: no such heads file; `{TRAIN_COMMAND}` trains heads") from None
    except ValidationError as error:
        raise CheckpointError(f"{path}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def _read(path: Path, heads: DraftHeads, decoder: Decoder) -> None:
    from safetensors.torch import load

    file = read_description(path)
    fits = (file.kind, file.hidden_size) == (heads.kind, decoder.config.hidden_size)
    if not fits or file.heads < heads.count:
        raise CheckpointError(
            f"{path} holds {file.heads} {file.kind} heads of {file.hidden_size} channels; {heads.count} {heads.kind} "
            f"heads of {decoder.config.hidden_size} are needed"
        )
    if decoder.checkpoint is None:
        raise CheckpointError(
            f"{path} belongs to {file.model}; this model has random weights: use heads: random:<seed>"
        )
    found = _hash_of(decoder.checkpoint)
    if file.checkpoint != found:
        raise CheckpointError(
            f"{path} belongs to a checkpoint of hash {file.checkpoint[:12]} ({file.model}); {decoder.checkpoint} has "
            f"{found[:12]}"
        )
    tensors = path.with_suffix(".safetensors")
    data = tensors.read_bytes() if tensors.is_file() else b""
    if hashlib.sha256(data).hexdigest() != file.tensors:
        raise CheckpointError(f"{tensors} is missing, or not the file that {path.name} describes")
    heads.load_state_dict({name: tensor[: heads.count] for name, tensor in load(data).items()})


@functools.lru_cache(maxsize=8)
def _hash_of(folder: Path) -> str:
    return model_hash(folder)
