"""The decoder: dense prefill in chunks, and one decode step through an attention method."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longdecode.engine.attention import AttentionMethod, DecodeState, TokenHeads
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.layer_weights import DecoderWeights
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.rope import RopeTable
from longdecode.kernels.add_rms_norm import add_rms_norm
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.linear import gated_linear, linear
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.kernels.rms_norm import rms_norm
from longdecode.kernels.rope import apply_rope
from longdecode.kernels.silu_mul import silu_mul

ChunkRead = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries ``[R, Hq, T, D]``, keys and values ``[R, Hkv, T, D]``) -> outputs ``[R, Hq, T, D]``."""


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

        Rows that are not active run along and leave no trace: their lengths, positions and reads stand still. Where
        ``state.dense`` is set, all heads read everything.
        """
        state.begin_step()
        method.before_step(state)
        cos, sin = self.rope.at(state.cache.positions)
        eps = self.config.rms_norm_eps
        residual = self.weights.embedding[tokens][:, None]
        delta: Tensor | None = None
        for index, layer in enumerate(self.weights.layers):
            normed, residual = add_rms_norm(delta, residual, layer.input_norm, eps)
            heads = self._heads(linear(normed, layer.qkv, layer.qkv_bias))
            q = method.append(index, TokenHeads(*heads, cos, sin, layer.q_norm, layer.k_norm, eps), state)
            attend = method.attend_all if state.dense else method.attend
            attended = attend(index, q, state).transpose(1, 2).flatten(2)
            delta = linear(attended, layer.o, layer.o_bias)
            normed, residual = add_rms_norm(delta, residual, layer.mlp_norm, eps)
            delta = linear(gated_linear(normed, layer.gate_up), layer.down)
        method.after_step(state)
        state.finish_step()
        normed, _ = add_rms_norm(delta, residual, self.weights.final_norm, eps)
        return linear(normed[:, 0], self.weights.lm_head).float()

    @torch.no_grad()
    def rewrite(self, tokens: Tensor, state: DecodeState) -> None:
        """Run the last ``T`` tokens that each row fed (``[B, T]`` int64) again, densely, and store what they give.

        Their keys and values replace those in the cache, layer by layer, so that each layer's queries read the new
        ones; lengths and positions stay. Active rows count what they read. Rows that are not active run along and keep
        their cache. Fixed shapes, no look at a value. The cache must keep every token in the slot of its position.
        """
        cache, width = state.cache, tokens.shape[1]
        # Only a row that is not active can have fed fewer tokens than the chunk has.
        starts = (cache.lengths - width).clamp(min=0)
        slots = starts[:, None] + torch.arange(width, device=self.device)

        def read(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.rewrite(index, slots, k, v, state.active)
            return decode_attention(q, cache.keys(index), cache.values(index), starts + width)[0]

        self._chunk(tokens, *self.rope.at_each(slots), read)
        seen = cache.lengths * state.active
        state.seen += seen
        state.kv_tokens_read += seen * self.config.num_kv_heads

    def _prefill_chunk(self, tokens: Tensor, rows: slice, start: int, cache: KVCache) -> Tensor:
        """Hidden states ``[R, T, H]``, before the final norm, of tokens ``[R, T]`` of ``rows`` at ``start ..``."""
        stop = start + tokens.shape[1]

        def read(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache.write(index, start, k, v, rows)
            seen_k, seen_v = cache.keys(index)[rows, :, :stop], cache.values(index)[rows, :, :stop]
            return prefill_attention(q, seen_k, seen_v, start)

        return self._chunk(tokens, *self.rope.span(start, stop), read)

    def _chunk(self, tokens: Tensor, cos: Tensor, sin: Tensor, read: ChunkRead) -> Tensor:
        """Hidden states ``[R, T, H]``, before the final norm, of tokens ``[R, T]`` rotated by ``cos`` and ``sin``.

        ``read`` stores a layer's rotated keys and its values and attends to what the layer's queries may see.
        """
        eps = self.config.rms_norm_eps
        residual = self.weights.embedding[tokens]
        delta: Tensor | None = None
        for index, layer in enumerate(self.weights.layers):
            normed, residual = add_rms_norm(delta, residual, layer.input_norm, eps)
            q, k, v = self._heads(F.linear(normed, layer.qkv, layer.qkv_bias))
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = rms_norm(q, layer.q_norm, eps), rms_norm(k, layer.k_norm, eps)
            q, k = apply_rope(q, k, cos, sin)
            delta = F.linear(read(index, q, k, v).transpose(1, 2).flatten(2), layer.o, layer.o_bias)
            normed, residual = add_rms_norm(delta, residual, layer.mlp_norm, eps)
            delta = F.linear(silu_mul(F.linear(normed, layer.gate_up)), layer.down)
        return residual if delta is None else residual + delta

    def _heads(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[B, Hq, T, D]``, keys and values ``[B, Hkv, T, D]``: views of one projection ``[B, T, H']``."""
        config = self.config
        heads = fused.unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        q, k, v = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        return q, k, v

    def _logits(self, hidden: Tensor) -> Tensor:
        """Final norm and LM head of ``[B, H]``, ``[B, V]`` float32."""
        normed = rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)
        return F.linear(normed, self.weights.lm_head).float()
