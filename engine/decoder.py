"""The decoder: one forward pass over a block of tokens, through an attention method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import Observed, PrefillObserver, PrefillState
from longdecode.engine.rope import RopeTable
from longdecode.engine.token_block import BlockHeads, Piece, Stream, TokenBlock
from longdecode.kernels.linear import linear, norm_linear
from longdecode.kernels.rms_norm import add_rms_norm, rms_norm
from longdecode.kernels.rope import rotate


@dataclass(slots=True)
class LayerWeights:
    """One layer: ``H`` hidden, ``F`` feed-forward, ``Hq`` and ``Hkv`` heads of ``D``; matrices are ``[out, in]``."""

    input_norm: Tensor
    """``[H]``"""
    qkv: Tensor
    """``[(Hq + 2 Hkv) D, H]``: queries, then keys, then values."""
    o: Tensor
    """``[H, Hq D]``"""
    mlp_norm: Tensor
    """``[H]``"""
    gate_up: Tensor
    """``[2F, H]``: gate, then up; of ``E`` experts ``[E, 2F, H]``."""
    down: Tensor
    """``[H, F]``, or ``[E, H, F]``."""
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    q_norm: Tensor | None = None
    """``[D]``"""
    k_norm: Tensor | None = None
    """``[D]``"""
    router: Tensor | None = None
    """``[E, H]`` in layers with experts."""


@dataclass(slots=True)
class DecoderWeights:
    """A whole decoder; with tied embeddings ``lm_head`` is ``embedding`` itself."""

    embedding: Tensor
    """``[V, H]``"""
    layers: list[LayerWeights]
    final_norm: Tensor
    """``[H]``"""
    lm_head: Tensor
    """``[V, H]``"""
    experts_per_token: int = 0

    def nbytes(self) -> int:
        """Bytes a decode step reads at least: every matrix once, the embedding only where it is the head too.

        Of a layer's experts as many count as one token goes through: a batch's tokens may all go through the same.
        """
        tensors = self._matrices()
        chosen = sum(t.nbytes * self.experts_per_token // len(t) for t in tensors if t.dim() == 3)
        return chosen + sum(t.nbytes for t in tensors if t.dim() < 3)

    def resident_bytes(self) -> int:
        """Bytes that the weights occupy: all experts, and the embedding, of which a step reads a few rows only."""
        embedding = 0 if self.embedding is self.lm_head else self.embedding.nbytes
        return embedding + sum(t.nbytes for t in self._matrices())

    def _matrices(self) -> list[Tensor]:
        """All tensors but the embedding."""
        held = (getattr(layer, name) for layer in self.layers for name in LayerWeights.__slots__)
        return [self.final_norm, self.lm_head, *(t for t in held if t is not None)]


class Decoder:
    """A Llama-style decoder: RMS norm, rotary grouped-query attention, gated MLP."""

    checkpoint: Path | None = None
    """Folder that the weights came from; ``None`` for random ones."""
    add_norm: Callable[..., tuple[Tensor, Tensor]] = staticmethod(add_rms_norm)

    def __init__(self, config: ModelConfig, weights: DecoderWeights, device: torch.device, dtype: torch.dtype):
        self.config = config
        self.weights = weights
        self.device = device
        self.dtype = dtype
        self.rope = RopeTable(config, device)

    def cache_shape(self, batch: int, capacity: int, decoded: int | None = None) -> CacheShape:
        """Return the shape of a cache for this model; any token may be a decoded one where ``decoded`` is left out."""
        return CacheShape(
            self.config, batch, capacity, self.device, self.dtype, capacity if decoded is None else decoded
        )

    def new_cache(self, batch: int, capacity: int) -> DenseCache:
        """Return an empty dense cache for this model."""
        return DenseCache(self.cache_shape(batch, capacity))

    @torch.no_grad()
    def forward(self, block: TokenBlock, state: DecodeState | PrefillState, method: AttentionMethod) -> Tensor:
        """Feed a block of tokens: a decode step, a correction, a draft to verify or a whole prompt.

        A prompt is worked off in pieces inside each layer, every other block at once. Rows that are not active run
        along. The caller of a decode step decides with ``state.accept`` how much of the block stays.

        Returns:
            Hidden states after the final norm, ``[B, T, H]``; of a prompt each row's last, ``[B, 1, H]``.
        """
        state.begin(block, method)
        pieces = state.pieces(block)
        angles = self._angles(block.positions, pieces)
        streams: list[Stream] = [
            (self.weights.embedding[block.tokens[piece.rows, piece.columns].to(self.device)], None) for piece in pieces
        ]
        last = self.config.num_layers - 1
        for index, layer in enumerate(self.weights.layers):
            for at, piece in enumerate(pieces):
                heads, residual = self._project(layer, streams[at], *angles[at], isinstance(state, PrefillState))
                if method.looks_ahead and isinstance(state, DecodeState) and block.reads == "method" and index < last:
                    method.look_ahead(index + 1, self._early_queries(index + 1, residual, *angles[at]), state)
                attended = state.attend(index, heads, method, piece)
                streams[at] = self._finish(layer, attended, residual)
            state.end_layer(index, method)
        state.end(method)
        residual, delta = state.outputs(streams, pieces)
        normed, state.residual = self.add_norm(delta, residual, self.weights.final_norm, self.config.rms_norm_eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the LM head's output for ``[..., H]``: ``[..., V]`` float32."""
        return linear(hidden, self.weights.lm_head).float()

    def step(self, tokens: Tensor, state: DecodeState, method: AttentionMethod) -> Tensor:
        """Feed and keep one token a row (``[B]`` int64); return the logits after it, ``[B, V]`` float32."""
        hidden = self.forward(method.step_block(tokens, state), state, method)
        state.accept()
        return self.logits(hidden[:, -1])

    def prefill(
        self, prompts: Sequence[Tensor], cache: KVCache, piece_tokens: int, method: AttentionMethod | None = None,
        observers: Sequence[PrefillObserver] = (),
    ) -> tuple[Tensor, Observed]:  # fmt: skip
        """Fill an empty cache with ragged prompts, one block padded on the right.

        Causal attention keeps every real token from seeing the padding, whose slots lie past the row's length.

        Args:
            prompts: ``B`` int64 tensors on the CPU, of one token or more each.
            cache: a dense one, or one that ``method`` made.
            piece_tokens: rows times columns of a piece, which bounds the memory of activations.
            method: attends to the prompt and fills ``cache``; dense attention where it is left out.
            observers: see every piece.

        Returns:
            Logits after each row's last token, ``[B, V]`` float32, and what the observers kept.
        """
        tokens = pad_sequence(list(prompts), batch_first=True)
        block = TokenBlock(tokens, torch.arange(tokens.shape[1], device=self.device)[None])
        state = PrefillState(cache, [len(prompt) for prompt in prompts], piece_tokens, observers)
        hidden = self.forward(block, state, method or DenseAttention((), self.config))
        return self.logits(hidden[:, 0]), state.observed

    def _angles(self, positions: Tensor, pieces: Sequence[Piece]) -> list[tuple[Tensor, Tensor]]:
        """Look up the rotation of each piece; pieces at the same positions share it."""
        known: dict[tuple[int | None, ...], tuple[Tensor, Tensor]] = {}
        places = []
        for piece in pieces:
            rows = piece.rows if positions.shape[0] > 1 else slice(None)
            place = (rows.start, piece.columns.start, piece.columns.stop)
            if place not in known:
                known[place] = self.rope.at(positions[rows, piece.columns])
            places.append(place)
        return [known[place] for place in places]

    def _project(
        self, layer: LayerWeights, stream: Stream, cos: Tensor, sin: Tensor, observed: bool
    ) -> tuple[BlockHeads, Tensor]:
        """Norm and project: the heads, views of one projection, and the residual with the last output added.

        ``observed`` keeps what is projected, for observers of a prefill.
        """
        config, (residual, delta) = self.config, stream
        by = layer.input_norm, config.rms_norm_eps, layer.qkv, layer.qkv_bias
        projected, residual, normed = norm_linear(delta, residual, *by, keep_normed=observed, add_norm=self.add_norm)
        heads = projected.unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        q, k, v = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        return BlockHeads(q, k, v, cos, sin, layer.q_norm, layer.k_norm, config.rms_norm_eps, normed), residual

    def _early_queries(self, index: int, residual: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the rotated queries ``[B, Hq, T, D]`` that a layer would have if the one before it added nothing.

        Source: the idea of InfiniGen (arXiv 2406.19707): one layer's input is nearly the next one's.
        """
        layer, config = self.weights.layers[index], self.config
        rows = config.num_heads * config.head_dim
        normed = rms_norm(residual, layer.input_norm, config.rms_norm_eps)
        bias = None if layer.qkv_bias is None else layer.qkv_bias[:rows]
        q = linear(normed, layer.qkv[:rows], bias).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        q = q if layer.q_norm is None else rms_norm(q, layer.q_norm, config.rms_norm_eps)
        return rotate(q, cos, sin)

    def _finish(self, layer: LayerWeights, attended: Tensor, residual: Tensor) -> Stream:
        """Project the attention's output ``[B, Hq, T, D]`` and run the MLP or the experts."""
        delta = linear(attended.transpose(1, 2).flatten(2), layer.o, layer.o_bias)
        if layer.router is not None and (mixture := self.config.experts) is not None:
            from longdecode.kernels.experts import experts  # a dense model has no use for it

            normed, residual = self.add_norm(delta, residual, layer.mlp_norm, self.config.rms_norm_eps)
            matrices = layer.router, layer.gate_up, layer.down
            return residual, experts(normed, *matrices, mixture.per_token, mixture.normalise)
        inner, residual, _ = norm_linear(
            delta, residual, layer.mlp_norm, self.config.rms_norm_eps, layer.gate_up, gated=True, add_norm=self.add_norm
        )
        return residual, linear(inner, layer.down)
