"""Tensor parallelism: one model over the GPUs of one host, a process a GPU.

Each rank holds the query and KV heads, feed-forward channels and LM head rows of its share, so that caches, kernels and
methods run as on one GPU, on fewer heads. Two sums over the ranks a layer and one gather of the logits join the shares.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.config_reader import read_config
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder, DecoderWeights
from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillState
from longdecode.engine.ranks import Rank, over_gpus
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.weights import _read_weights, _Reader, check_checkpoint, load_decoder
from longdecode.kernels.linear import linear
from longdecode.kernels.rms_norm import add_rms_norm

T = TypeVar("T")

PARALLEL_METHODS = ("duo", "full", "lychee", "quest", "retro", "snapkv", "streaming")
"""Methods in which no KV head depends on another, so that ranks need not agree on what is read."""
_SPLIT_AXES = {
    "q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "lm_head": 0, "o_proj": 1, "down_proj": 1,
}  # fmt: skip
"""Axis along which a module's tensors are split; every other tensor is whole on every rank."""


class TensorParallelDecoder(Decoder):
    """A rank's share of a decoder; ``config`` counts the share's heads, ``whole`` the model's.

    The embedding is whole on every rank, ``V H`` elements (2.1 GB for Llama 3 70B in bfloat16): split, it would cost a
    third kind of sum a step.
    """

    def __init__(
        self, whole: ModelConfig, weights: DecoderWeights, rank: Rank, device: torch.device, dtype: torch.dtype
    ):
        super().__init__(rank.share_of(whole), weights, device, dtype)
        self.whole = whole
        self.rank = rank
        self.small_sum = None
        if device.type == "cuda":
            # Triton is installed where it can run; elsewhere this module must still import.
            from longdecode.kernels.peer_sum import peer_sum_norm

            self.small_sum = peer_sum_norm(whole.hidden_size, device, dtype)

    def forward(self, block: TokenBlock, state: DecodeState | PrefillState, method: AttentionMethod) -> Tensor:
        """See ``Decoder.forward``; every rank feeds the same block and gets the same hidden states.

        Raises:
            UnsupportedCellError: the method does not run on a share of the heads.
        """
        refuse_method(method.name)
        return super().forward(block, state, method)

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``Decoder.logits``; each rank computes its rows of the LM head and gets those of all."""
        vocab = self.config.vocab_size
        width = -(-vocab // self.rank.world)
        own = F.pad(linear(hidden, self.weights.lm_head), (0, width - len(self.weights.lm_head))).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.rank.world)]
        dist.all_gather(parts, own)
        return torch.cat(parts, dim=-1)[..., :vocab].float().contiguous()

    def add_norm(self, part: Tensor | None, residual: Tensor, norm: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As ``add_rms_norm`` of the sum of what the ranks project from their heads or channels."""
        if part is not None and self.small_sum is not None and self.small_sum.fits(part):
            return self.small_sum(part, residual, norm, eps)
        if part is not None:
            dist.all_reduce(part)
        return add_rms_norm(part, residual, norm, eps)


def refuse_method(name: str) -> None:
    """Refuse a method that is not known to run on a share of the heads.

    Raises:
        UnsupportedCellError: as said.
    """
    if name not in (*PARALLEL_METHODS, DenseAttention.name):
        raise UnsupportedCellError(
            f"{name} does not run over several GPUs; methods that do: {', '.join(PARALLEL_METHODS)}"
        )


def method_for(
    decoder: Decoder, chosen: type[AttentionMethod], budget: int | None, params: dict[str, Any]
) -> AttentionMethod:
    """Build a method for a decoder; on a share, head roles are the whole model's, cut to the rank's KV heads.

    Raises:
        ConfigError, UnsupportedCellError: as of ``AttentionMethod.from_budget``.
    """
    if not isinstance(decoder, TensorParallelDecoder) or "roles" not in {knob.name for knob in fields(chosen.Params)}:
        return chosen.from_budget(budget, decoder.config, **params)
    whole = chosen.from_budget(budget, decoder.whole, **params)
    mine = decoder.rank.part(decoder.whole.num_kv_heads)
    roles = [[int(head in heads) for head in range(mine.start, mine.stop)] for heads in whole.dense_heads()]
    about = {"model": "share of a model", "layers": decoder.config.num_layers, "kv_heads": decoder.config.num_kv_heads}
    with TemporaryDirectory(prefix="longdecode-roles-") as folder:
        file = Path(folder, "roles.json")
        file.write_text(json.dumps({**about, "kind": "share", "scores": roles, "roles": roles}), encoding="utf-8")
        own = replace(whole.params, roles=str(file), retrieval_heads=sum(map(sum, roles)))
        # Not by from_budget, whose checks the whole model has passed: all heads of one share may retrieve.
        shared: AttentionMethod = cast(Any, chosen)(own, decoder.config, budget)
        return shared


class _ShareReader(_Reader):
    """Named tensors of a checkpoint, of which a rank's slices alone are read."""

    def __init__(self, rank: Rank, *args: Any):
        super().__init__(*args)
        self.rank = rank

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name.startswith("lm_head."):
            rows = self.rank.part(shape[0])
            shape = (rows.stop - rows.start, *shape[1:])
        return super().__call__(name, *shape)

    def read(self, name: str) -> Tensor:
        """Read this rank's slice of a tensor, or all of one that is not split."""
        stored, axis = self.handles[name].get_slice(name), _SPLIT_AXES.get(name.split(".")[-2])
        sizes = stored.get_shape()
        if axis is None or axis >= len(sizes):  # the output projection's bias is whole
            return super().read(name)
        part = self.rank.part(sizes[axis])
        slice_: Tensor = stored[part] if axis == 0 else stored[:, part]
        return slice_


def load_share(folder: Path, rank: Rank, device: torch.device, dtype: torch.dtype) -> TensorParallelDecoder:
    """Load a rank's share of a checkpoint folder; no more of a split tensor is read than the rank's slice.

    Raises:
        CheckpointError, UnsupportedFamilyError: as of ``load_decoder``.
        ConfigError: as of ``Rank.share_of``.
    """
    whole = check_checkpoint(folder)
    with ExitStack() as stack:
        weights = _read_weights(rank.share_of(whole), _ShareReader(rank, folder, device, dtype, stack))
    if whole.tie_embeddings:
        weights.lm_head = weights.embedding[rank.part(whole.vocab_size)]
    if rank.index:  # the sum over the ranks takes the bias once
        for layer in weights.layers:
            layer.o_bias = None
    decoder = TensorParallelDecoder(whole, weights, rank, device, dtype)
    decoder.checkpoint = folder
    return decoder


def run_split(
    folder: Path, gpus: int, device: str, dtype: str, method: str, function: Callable[[Decoder], T]
) -> list[T]:
    """Load a checkpoint and call a function of the decoder: here, or over several GPUs in the process of each.

    Args:
        folder: of the checkpoint.
        gpus: 1, or how many processes share the model.
        device: as of ``resolve_device``, or of ``over_gpus``.
        dtype: as of ``resolve_dtype``.
        method: name of the method that ``function`` runs.
        function: at the top level of a module, or a ``partial`` of such a one.

    Returns:
        What it returned on each rank.

    Raises:
        UnsupportedCellError: the method does not run over several GPUs.
        ConfigError, RankError: as of ``over_gpus``; the number of GPUs does not divide the KV heads.
        CheckpointError, UnsupportedFamilyError: as of ``read_config``.
    """
    if gpus == 1:
        target = resolve_device(device)
        return [function(load_decoder(folder, device=target, dtype=resolve_dtype(dtype, target)))]
    refuse_method(method)
    Rank(0, gpus).share_of(read_config(folder))
    return over_gpus(gpus, device, partial(_load_and_run, folder, dtype, function))


def _load_and_run(folder: Path, dtype: str, function: Callable[[Decoder], T], rank: Rank, device: torch.device) -> T:
    return function(load_share(folder, rank, device, resolve_dtype(dtype, device)))
