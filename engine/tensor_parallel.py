"""Tensor parallelism: one model over the GPUs of one host, a process a GPU.

Each rank holds the query and KV heads, feed-forward channels and LM head rows of its share, so that caches, kernels and
methods run as on one GPU, on fewer heads. Two sums over the ranks a layer and one gather of the logits join the shares.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder, DecoderWeights
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillState
from longdecode.engine.ranks import Rank
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.weights import _read_weights, _Reader, check_checkpoint
from longdecode.kernels.linear import linear
from longdecode.kernels.rms_norm import add_rms_norm

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

    def share(self, method: AttentionMethod) -> AttentionMethod:
        """Return a method of the whole model for the rank's KV heads."""
        return method.share(self.config, self.rank.part(self.whole.num_kv_heads))

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
