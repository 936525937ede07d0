"""A differentiable forward of frozen weights, in which gates mix full and sparse attention head by head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from longdecode.engine.decoder import Decoder, LayerWeights
from longdecode.engine.kv_cache import DenseCache
from longdecode.kernels.linear.naive import silu_mul
from longdecode.kernels.rope.naive import rotate
from longdecode.training.roles.token_sets import SparseBranch, causal_mask, chosen_sets, streaming_mask

# All of them take a mask and have a gradient; which one runs depends on the device.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class GatedModel:
    """Teacher and student of one decoder over the last tokens of densely prefilled contexts.

    The teacher attends fully everywhere. In the student the output of KV head ``h`` of layer ``l`` is
    ``z full + (1 - z) sparse``. Contexts carry no gradient; targets run in one parallel, teacher-forced call, with
    gradients for activations and gates but for no weight. All operations are torch's, since the engine's Triton
    kernels have no gradient; flash attention keeps no map of weights. Norms round once where the engine's round twice.
    """

    def __init__(self, decoder: Decoder, sparse: SparseBranch):
        self.decoder = decoder
        self.sparse = sparse

    def hidden(
        self, tokens: Tensor, cache: DenseCache, start: int, gates: Tensor | None = None,
        closed: Sequence[bool] | None = None,
    ) -> Tensor:  # fmt: skip
        """Final hidden states, after the last norm, of the targets.

        Args:
            tokens: ``[B, T]`` int64, at positions ``start ..`` of their rows, on the decoder's device.
            cache: rows prefilled with ``start`` tokens each; it is not written to.
            gates: ``[B, L, Hkv]`` float32 in [0, 1], or ``None`` for the teacher.
            closed: layers whose gates are all 0 and have no gradient there; their full attention is left out.

        Returns:
            ``[B, T, H]`` in the model's dtype.
        """
        decoder = self.decoder
        causal = causal_mask(start, tokens.shape[1], tokens.device)
        streams = self.sparse.branch == "streaming"
        sets = streaming_mask(start, tokens.shape[1], self.sparse, tokens.device)[None, None, None] if streams else None
        bias = None if sets is None else self._bias(sets)
        rope = decoder.rope.at(torch.arange(start, start + tokens.shape[1], device=tokens.device)[None])
        residual = decoder.weights.embedding[tokens]
        eps = decoder.config.rms_norm_eps
        for index, layer in enumerate(decoder.weights.layers):
            q, k, v = self._heads(layer, residual, rope)
            keys = torch.cat((cache.keys(index)[:, :, :start], k), dim=2)
            values = torch.cat((cache.values(index)[:, :, :start], v), dim=2)
            sparse = None if gates is None or bias is None else _attend(q, keys, values, bias)
            if sparse is not None and closed and closed[index] and self.sparse.inherit == "chain":
                attended = sparse
            else:
                attended = full = _attend_all(q, keys, values)
                if gates is not None:
                    z = gates[:, index, :, None, None, None]
                    attended = full if sparse is None else (z * full + (1.0 - z) * sparse).to(full.dtype)
                    if not streams:
                        sets = self._handed_down(q.detach(), keys.detach(), causal, sets, z.detach())
                        bias = self._bias(sets)
            merged = attended.flatten(1, 2).transpose(1, 2).flatten(2)
            residual = residual + F.linear(merged, layer.o, layer.o_bias)
            normed = _normed(residual, layer.mlp_norm, eps)
            residual = residual + F.linear(silu_mul(F.linear(normed, layer.gate_up)), layer.down)
        return _normed(residual, decoder.weights.final_norm, eps)

    @cached_property
    def gram(self) -> Tensor:
        """``W^T W`` of the LM head, ``[H, H]`` float32: ``d gram d`` is the squared length of the logits of ``d``."""
        head = self.decoder.weights.lm_head.float()
        return head.T @ head

    def _heads(self, layer: LayerWeights, residual: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Rotated queries ``[B, Hkv, G, T, D]`` and keys, and values, ``[B, Hkv, T, D]``."""
        config = self.decoder.config
        normed = _normed(residual, layer.input_norm, config.rms_norm_eps)
        heads = F.linear(normed, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        q, k, v = heads.split((config.num_heads, config.num_kv_heads, config.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = _normed(q, layer.q_norm, config.rms_norm_eps), _normed(k, layer.k_norm, config.rms_norm_eps)
        q, k = rotate(torch.cat((q, k), dim=1), *rope).split((config.num_heads, config.num_kv_heads), dim=1)
        return q.unflatten(1, (config.num_kv_heads, -1)), k, v

    def _bias(self, mask: Tensor) -> Tensor:
        """0 where a mask ``[B, Hkv, G, T, S]`` holds and -inf elsewhere, for a group's queries one after the other."""
        weights = self.decoder.weights.embedding
        bias = torch.zeros(mask.shape, dtype=weights.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
        return bias.expand(-1, -1, self.decoder.config.group_size, -1, -1).flatten(2, 3)

    def _handed_down(self, q: Tensor, keys: Tensor, causal: Tensor, sets: Tensor | None, z: Tensor) -> Tensor:
        """The next layer's sets: this layer's own, or along a chain what it inherited where it does not retrieve."""
        asking = q if self.sparse.selection == "code" else q.mean(dim=2, keepdim=True)
        scores = asking.flatten(2, 3) @ keys.transpose(-1, -2)
        own = chosen_sets(scores.unflatten(2, asking.shape[2:4]), self.sparse, causal)
        if sets is None or self.sparse.inherit == "previous_layer":
            return own
        return torch.where(z > 0.5, own, sets)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _attend_all(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention ``[B, Hkv, G, T, D]`` of the last ``T`` positions to all before them."""
    causal = causal_lower_right(q.shape[3], keys.shape[2])
    attended = F.scaled_dot_product_attention(q.flatten(1, 2), keys, values, causal, enable_gqa=True)
    return attended.unflatten(1, q.shape[1:3])


def _attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention ``[B, Hkv, G, T, D]``; a group's query heads stand one after the other, so that no key is copied."""
    with sdpa_kernel(_BACKENDS):
        return F.scaled_dot_product_attention(q.flatten(2, 3), keys, values, bias).unflatten(2, q.shape[2:4])
