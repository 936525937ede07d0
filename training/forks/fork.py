"""A checkpoint to be continued: transformers' model with low-rank factors, and the engine's selection in attention."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longdecode.engine.config_reader import read_config
from longdecode.engine.device import resolve_dtype
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.training_spec import ForkTraining
from longdecode.kernels.importance import ImportanceWeights, token_importance
from longdecode.kernels.sparse_training_attention import sparse_training_attention
from longdecode.methods.importance_heads import ImportanceHeads
from longdecode.methods.prompt_selection import SelectivePrefill
from longdecode.methods.registry import get_method
from longdecode.training.long_context.adaptor import low_rank_model

ATTENTION = "longdecode_fork"
_FULL_BLOCK = 64
"""Tokens of a block where every query reads all of them."""
_STRETCH = 4096
"""Queries that select at a time: DMA's ranking of 16,384 tokens for as many queries would take 15 GB at once."""
_KEPT_TOKENS = 8192
"""Tokens of a step up to which all activations are kept. Over them norms and MLPs are computed again: 150 KB a token
and layer would be 64 GB at 16,384 tokens and 28 layers."""
_ASKED_EVERY = 64
"""One query of so many whose attention says what its tokens receive."""
_SHARPNESS = 8.0
"""Importances times this predict the logarithm of attention received, so that they stay small where logits add them."""
TARGETS: dict[str, str | list[str]] = {"all": "all-linear", "attention": ["q_proj", "k_proj", "v_proj", "o_proj"]}


class TrainedHeads(ImportanceHeads, nn.Module):
    """Importance heads as parameters: ``delta`` is drawn, ``scale`` starts at one value.

    At a scale of 0, as released, the first steps train the scale alone; see section 1.5 of the evidence in
    docs/reproduction-nosa.md.
    """

    def __init__(self, config: ModelConfig, form: str, scale_init: float, device: torch.device, seed: int):
        nn.Module.__init__(self)
        joined = config.num_kv_heads * config.head_dim
        generator = torch.Generator().manual_seed(seed)
        delta = torch.randn(config.num_layers, config.num_kv_heads, joined, generator=generator) * joined**-0.5
        self.delta = nn.Parameter(delta.to(device))
        self.scale = nn.Parameter(torch.full(delta.shape[:2], scale_init, device=device))
        self.form = form

    def layer(self, layer: int, device: torch.device) -> ImportanceWeights:
        """Return the weights of one layer, with their gradient."""
        return ImportanceWeights(self.delta[layer], self.scale[layer], self.form)


class ForkedAttention:
    """Attention of all layers of a fork: selects by the method's rule without a gradient, then attends with one.

    Full attention reads every block through the same kernel: torch's own backward pass adds in no fixed order on a GPU,
    and two trainings of one seed would end with other weights.
    """

    def __init__(self, run: ForkTraining, config: ModelConfig, device: torch.device):
        self.method: SelectivePrefill | None = None
        self.heads: TrainedHeads | None = None
        self.watched: list[Tensor] | None = None
        """While a list: the mean overlap of neighbouring queries, of each layer in turn."""
        self.teaching = False
        """True while the checkpoint before training reads a document, with full attention."""
        self.asks_received = run.received > 0
        self.received: list[Tensor] = []
        """By layer, attention of the teacher's queries on tokens that importance may choose, ``[B, Hkv, Q, T]``."""
        self.signals: list[Tensor] = []
        """By layer, the loss of importances against it."""
        if run.attention == "full":
            return
        params = {} if run.attention == "infllm2" else {"heads": "zero"}
        method = get_method(run.attention).from_budget(run.budget, config, **params)
        assert isinstance(method, SelectivePrefill)
        self.method = method
        if params:
            self.heads = TrainedHeads(config, run.head, run.scale_init, device, run.seed)
            setattr(method, "heads", self.heads)  # noqa: B010 - the rule ranks by what is being trained

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend from ``[B, Hq, T, D]`` to keys and values ``[B, Hkv, T, D]``."""
        with torch.autocast(q.device.type, enabled=False):
            if self.teaching:
                if self.asks_received:
                    self.received.append(self._attention_received(q, k, scale))
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
            if self.method is None:
                blocks = -(-q.shape[2] // _FULL_BLOCK)
                every = torch.ones(*k.shape[:3], blocks, dtype=torch.bool, device=k.device)
                return sparse_training_attention(q, k, v, every, _FULL_BLOCK, None, scale)
            with torch.no_grad():
                read = self._selected(self.method, layer, q, k, v)
                if self.watched is not None:
                    self.watched.append(self._overlap(read))
            bias = token_importance(v, self.heads.layer(layer, v.device)) if self.heads else None
            if self.received and self.heads:
                alone = token_importance(v.detach(), self.heads.layer(layer, v.device))
                self.signals.append(self._importance_loss(alone, self.received[layer]))
            return sparse_training_attention(q, k, v, read, self.method.list_block, bias, scale)

    @staticmethod
    def _selected(method: SelectivePrefill, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the blocks that each query reads, ``[B, Hkv, T, N]`` bool."""
        index, tokens = method.index_prompt(layer, k, v), q.shape[2]
        read = torch.zeros(*k.shape[:3], -(-tokens // method.list_block), dtype=torch.bool, device=k.device)
        for first in range(0, tokens, _STRETCH):
            stop = min(tokens, first + _STRETCH)
            some = method.select_prompt(q[:, :, first:stop], index, first, stop)
            read[:, :, first:stop, : some.shape[3]] = some
        return read

    def _choosable(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return queries ``[Q]``, and the tokens of each that are neither first nor latest, ``[Q, T]`` bool."""
        assert self.method is not None
        block, (first, latest) = self.method.list_block, self.method.forced
        queries = torch.arange((first + latest + 1) * block - 1, tokens, _ASKED_EVERY, device=device)
        place = torch.arange(tokens, device=device)
        return queries, (place >= first * block) & (place < (queries[:, None] // block - latest + 1) * block)

    def _attention_received(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Return the mean over a group of its attention within the tokens that importance may choose."""
        queries, choosable = self._choosable(q.shape[2], q.device)
        asked = q[:, :, queries].unflatten(1, (k.shape[1], -1)).float()
        logits = asked @ k[:, :, None].float().transpose(-1, -2) * scale
        return logits.masked_fill(~choosable, float("-inf")).softmax(dim=-1).mean(dim=2)

    def _importance_loss(self, importance: Tensor, received: Tensor) -> Tensor:
        """Return the mean cross-entropy of attention received under the softmax of importances ``[B, Hkv, T]``."""
        _, choosable = self._choosable(importance.shape[2], importance.device)
        scores = (_SHARPNESS * importance)[:, :, None].masked_fill(~choosable, -1e9).log_softmax(dim=-1)
        return -(received * scores).sum(dim=-1).mean()

    @staticmethod
    def _overlap(read: Tensor) -> Tensor:
        """Return the share of its blocks that a query has in common with the one before, for those past the budget."""
        counts = read.sum(dim=-1)
        full = (counts[:, :, 1:] == counts.max()) & (counts[:, :, :-1] == counts.max())
        shared = (read[:, :, 1:] & read[:, :, :-1]).sum(dim=-1) / counts[:, :, 1:]
        return ((shared * full).sum(dim=(0, 2)) / full.sum(dim=(0, 2)).clamp(min=1)).mean()


def load_fork(run: ForkTraining, folder: Path, device: torch.device) -> tuple[Any, ForkedAttention]:
    """Return the peft model of a checkpoint, whose attention is the fork's; what is trained is float32.

    Args:
        run: settings.
        folder: the dense checkpoint.
        device: where it trains.
    """
    from transformers import AttentionInterface, AutoModelForCausalLM

    # No mask goes with it: making one waits for the device in every forward.
    AttentionInterface.register(ATTENTION, _attend)
    dtype = resolve_dtype("auto", device)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=ATTENTION).to(device)
    fork = ForkedAttention(run, read_config(folder), device)
    for layer in base.model.layers:
        layer.self_attn.fork = fork
    torch.manual_seed(run.seed)
    model = low_rank_model(base, run.rank, 2 * run.rank, TARGETS[run.targets])
    if run.rows * run.length > _KEPT_TOKENS:
        for layer in base.model.layers:
            for part in (layer.input_layernorm, layer.post_attention_layernorm, layer.mlp):
                part.forward = partial(checkpoint, part.forward, use_reentrant=False, preserve_rng_state=False)
    return model, fork


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **more: Any
) -> tuple[Tensor, None]:
    """Attend as transformers asks: ``[B, H, T, D]`` in, ``[B, T, Hq, D]`` out; a document is one causal row."""
    out = module.fork(module.layer_idx, query, key, value, scaling)
    return out.transpose(1, 2).contiguous(), None
