"""The tensors of a decoder, with the projections fused as the engine multiplies them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
    """``[2F, H]``: gate, then up."""
    down: Tensor
    """``[H, F]``"""
    qkv_bias: Tensor | None = None
    o_bias: Tensor | None = None
    q_norm: Tensor | None = None
    """``[D]``"""
    k_norm: Tensor | None = None
    """``[D]``"""


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

    def nbytes(self) -> int:
        """Bytes a decode step reads: every matrix once, the embedding only where it is the head too."""
        total = sum(t.nbytes for t in (self.final_norm, self.lm_head))
        for layer in self.layers:
            tensors = (getattr(layer, name) for name in LayerWeights.__slots__)
            total += sum(t.nbytes for t in tensors if t is not None)
        return total
