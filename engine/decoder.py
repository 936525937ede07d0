"""The decoder: dense prefill in chunks, and one decode step through an attention method."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longdecode.engine.attention import AttentionMethod, DecodeState
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.layer_weights import DecoderWeights, LayerWeights
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.rope import RopeTable
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.kernels.rms_norm import rms_norm
from longdecode.kernels.rope import apply_rope
from longdecode.kernels.silu_mul import silu_mul


class Decoder:
    """A Llama-style decoder: RMS norm, rotary grouped-query attention, gated MLP."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, device: torch.device, dtype: torch.dtype):
        self.config = config
        self.weights = weights
        self.device = device
        self.dtype = dtype
        self.rope = RopeTable(config, device)

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache that fits this model."""
        return KVCache(self.config, batch, capacity, device=self.device, dtype=self.dtype)

    @torch.no_grad()
    def prefill(self, prompts: list[Tensor], cache: KVCache, chunk_tokens: int) -> Tensor:
        """Fill an empty cache with ragged prompts; return the logits after each row's last token, ``[B, V]`` float32.

        Rows are padded on the right; causal attention keeps every real token from seeing the padding, and the slots it
        leaves behind lie past the row's length.

        Args:
            prompts: ``B`` int64 tensors on the CPU, of one token or more each.
            chunk_tokens: rows times columns worked on at a time, which bounds the activations' memory: as many whole
                rows as fit, or a part of one.
        """
        lengths = [len(prompt) for prompt in prompts]
        last = torch.empty(len(prompts), self.config.hidden_size, device=self.device, dtype=self.dtype)
        group = max(1, chunk_tokens // max(lengths))
        for first in range(0, len(prompts), group):
            rows = slice(first, first + group)
            tokens = pad_sequence(prompts[rows], batch_first=True).to(self.device)
            width = max(1, chunk_tokens // len(tokens))
            for start in range(0, tokens.shape[1], width):
                hidden = self._prefill_chunk(tokens[:, start : start + width], rows, start, cache)
                for row, length in enumerate(lengths[rows]):
                    if start < length <= start + width:
                        last[first + row] = hidden[row, length - 1 - start]
        cache.lengths.copy_(torch.tensor(lengths))
        cache.positions.copy_(cache.lengths)
        return self._logits(last)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: DecodeState, method: AttentionMethod) -> Tensor:
        """Feed one token a row (``[B]`` int64) and return the logits after it, ``[B, V]`` float32.

        Rows that are not active run along and leave no trace: their lengths, positions and reads stand still.
        """
        cos, sin = self.rope.at(state.cache.positions)
        hidden = self.weights.embedding[tokens][:, None]
        residual = hidden
        delta: Tensor | None = None
        for index, layer in enumerate(self.weights.layers):
            normed, residual = self._add_norm(delta, residual, layer.input_norm)
            q, k, v = self._qkv(normed, layer, cos, sin)
            delta = self._output(method.attend(index, q, k, v, state), layer)
            normed, residual = self._add_norm(delta, residual, layer.mlp_norm)
            delta = _mlp(normed, layer)
        method.after_step(state)
        state.cache.advance(state.active)
        normed, _ = self._add_norm(delta, residual, self.weights.final_norm)
        return F.linear(normed[:, 0], self.weights.lm_head).float()

    def _prefill_chunk(self, tokens: Tensor, rows: slice, start: int, cache: KVCache) -> Tensor:
        """Hidden states ``[R, T, H]``, before the final norm, of tokens ``[R, T]`` of ``rows`` at ``start ..``."""
        stop = start + tokens.shape[1]
        cos, sin = self.rope.span(start, stop)
        residual = self.weights.embedding[tokens]
        delta: Tensor | None = None
        for index, layer in enumerate(self.weights.layers):
            normed, residual = self._add_norm(delta, residual, layer.input_norm)
            q, k, v = self._qkv(normed, layer, cos, sin)
            cache.write(index, start, k, v, rows)
            seen_k, seen_v = cache.keys(index)[rows, :, :stop], cache.values(index)[rows, :, :stop]
            delta = self._output(prefill_attention(q, seen_k, seen_v, start), layer)
            normed, residual = self._add_norm(delta, residual, layer.mlp_norm)
            delta = _mlp(normed, layer)
        return residual if delta is None else residual + delta

    def _add_norm(self, delta: Tensor | None, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block's output to the residual stream and normalize it; returns (normalized, new residual)."""
        eps = self.config.rms_norm_eps
        if delta is not None:
            residual = residual + delta
        return rms_norm(residual, weight, eps), residual

    def _qkv(self, x: Tensor, layer: LayerWeights, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project ``[B, T, H]`` to rotated queries ``[B, Hq, T, D]`` and keys, and values, ``[B, Hkv, T, D]``."""
        config = self.config
        heads = F.linear(x, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, config.head_dim))
        q, k, v = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=2)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = rms_norm(k, layer.k_norm, config.rms_norm_eps)
        q, k = apply_rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q, k, v.transpose(1, 2)

    def _output(self, attended: Tensor, layer: LayerWeights) -> Tensor:
        """Project the heads ``[B, Hq, T, D]`` back to ``[B, T, H]``."""
        return F.linear(attended.transpose(1, 2).flatten(2), layer.o, layer.o_bias)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Final norm and LM head of ``[B, H]``, ``[B, V]`` float32."""
        normed = rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)
        return F.linear(normed, self.weights.lm_head).float()


def _mlp(x: Tensor, layer: LayerWeights) -> Tensor:
    return F.linear(silu_mul(F.linear(x, layer.gate_up)), layer.down)
