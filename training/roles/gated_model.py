"""A differentiable forward of frozen weights, in which gates mix full and sparse attention head by head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longdecode.engine.decoder import Decoder, LayerWeights
from longdecode.engine.kv_cache import DenseCache
from longdecode.kernels.rms_norm.naive import rms_norm
from longdecode.kernels.rope.naive import apply_rope
from longdecode.kernels.silu_mul.naive import silu_mul
from longdecode.training.roles.token_sets import SparseBranch, causal_mask, chosen_sets, streaming_mask

_TINY = 1e-30


class GatedModel:
    """Teacher and student of one decoder over the last tokens of densely prefilled contexts.

    The teacher attends fully everywhere. In the student the output of KV head ``h`` of layer ``l`` is
    ``z full + (1 - z) sparse``. Contexts carry no gradient; targets run in one parallel, teacher-forced call. All
    operations are torch's, since the engine's Triton kernels have no gradient.

    Args:
        recompute: keep only each layer's input for the backward pass and work out the rest again, for models whose
            attention maps would not fit.
    """

    def __init__(self, decoder: Decoder, sparse: SparseBranch, *, recompute: bool = False):
        self.decoder = decoder
        self.sparse = sparse
        self.recompute = recompute

    def hidden(self, tokens: Tensor, cache: DenseCache, start: int, gates: Tensor | None = None) -> Tensor:
        """Final hidden states, after the last norm, of the targets.

        Args:
            tokens: ``[B, T]`` int64, at positions ``start ..`` of their rows, on the decoder's device.
            cache: rows prefilled with ``start`` tokens each; it is not written to.
            gates: ``[B, L, Hkv]`` float32 in [0, 1], or ``None`` for the teacher.

        Returns:
            ``[B, T, H]`` in the model's dtype.
        """
        decoder = self.decoder
        causal = causal_mask(start, tokens.shape[1], tokens.device)
        streams = self.sparse.branch == "streaming"
        sets = streaming_mask(start, tokens.shape[1], self.sparse, tokens.device)[None, None, None] if streams else None
        rope = decoder.rope.at(torch.arange(start, start + tokens.shape[1], device=tokens.device)[None])
        residual = decoder.weights.embedding[tokens]
        for index, layer in enumerate(decoder.weights.layers):
            past = cache.keys(index)[:, :, :start], cache.values(index)[:, :, :start]
            gate = None if gates is None else gates[:, index]
            if self.recompute and gates is not None:
                residual, sets = checkpoint(
                    self._layer, layer, residual, past, rope, causal, sets, gate, use_reentrant=False
                )
            else:
                residual, sets = self._layer(layer, residual, past, rope, causal, sets, gate)
        return rms_norm(residual, decoder.weights.final_norm, decoder.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """LM head of ``[..., H]``: ``[..., V]`` float32."""
        return F.linear(hidden, self.decoder.weights.lm_head).float()

    def _layer(
        self,
        layer: LayerWeights,
        residual: Tensor,
        past: tuple[Tensor, Tensor],
        rope: tuple[Tensor, Tensor],
        causal: Tensor,
        sets: Tensor | None,
        gate: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """One layer: its output ``[B, T, H]`` and the sets that the next one inherits."""
        config = self.decoder.config
        eps = config.rms_norm_eps
        normed = rms_norm(residual, layer.input_norm, eps)
        fused = F.linear(normed, layer.qkv, layer.qkv_bias)
        heads = fused.unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        q, k, v = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = rms_norm(q, layer.q_norm, eps), rms_norm(k, layer.k_norm, eps)
        q, k = apply_rope(q, k, *rope)
        keys, values = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        attended, sets = self._attend(q, keys, values, causal, sets, gate)
        residual = residual + F.linear(attended.transpose(1, 2).flatten(2), layer.o, layer.o_bias)
        normed = rms_norm(residual, layer.mlp_norm, eps)
        return residual + F.linear(silu_mul(F.linear(normed, layer.gate_up)), layer.down), sets

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, causal: Tensor, sets: Tensor | None, gate: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Mixed attention ``[B, Hq, T, D]`` of queries of that shape, and the sets to hand down.

        The two branches share one softmax: with ``p`` the full weights and ``M`` the set, the sparse weights are
        ``p M / sum(p M)``, so the mix is ``p (z + (1 - z) M / sum(p M))``.
        """
        batch, q_heads, tokens, dim = q.shape
        kv_heads, total = keys.shape[1], keys.shape[2]
        folded = q.reshape(batch, kv_heads, -1, dim)
        logits = (folded @ keys.transpose(-1, -2)).view(batch, kv_heads, -1, tokens, total)
        weights = (logits.float() * dim**-0.5).masked_fill(~causal, -torch.inf).softmax(dim=-1)
        if gate is not None and sets is not None:
            z = gate[:, :, None, None, None]
            kept = (weights * sets).sum(dim=-1, keepdim=True).clamp_min(_TINY)
            weights = weights * (z + sets * ((1.0 - z) / kept))
        if gate is not None and self.sparse.branch == "inherited":
            sets = self._handed_down(logits.detach(), causal, sets, gate.detach())
        mixed = weights.to(values.dtype).view(batch, kv_heads, -1, total) @ values
        return mixed.view(batch, q_heads, tokens, dim), sets

    def _handed_down(self, logits: Tensor, causal: Tensor, sets: Tensor | None, gate: Tensor) -> Tensor:
        """The next layer's sets: this layer's own, or along a chain what it inherited where it does not retrieve."""
        own = chosen_sets(logits, self.sparse, causal)
        if sets is None or self.sparse.inherit == "previous_layer":
            return own
        return torch.where((gate > 0.5)[:, :, None, None, None], own, sets)
