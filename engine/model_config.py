"""The few numbers of a checkpoint's config.json that the decoder needs, in one frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in some layers of a model, in place of one feed-forward block."""

    count: int
    per_token: int
    """Experts that one token goes through."""
    size: int
    """Feed-forward channels of one expert."""
    normalise: bool
    """The weights of a token's experts add up to one."""
    layers: tuple[int, ...]
    """Layers that have experts; the others are dense."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and conventions of one decoder-only model.

    ``rope`` keeps the checkpoint's rotary parameters as written (``rope_type``, ``rope_theta``, ...); the frequencies
    are computed from it by ``engine.rope``. The scales are MiniCPM's: loading multiplies them into the weights, so that
    no decoder, kernel or method knows of them.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float = 1e-5
    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    rope: Mapping[str, Any] = field(default_factory=dict)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    copies_embedding: bool = False
    """The LM head is the embedding under another scale: one tensor in the file, two matrices in memory."""
    experts: Experts | None = None
    importance_file: str = field(default="", compare=False)
    """File of the checkpoint's importance heads, empty where it has none."""

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    def parameters(self, read: bool = False) -> int:
        """Numbers in a checkpoint's matrices; with ``read``, of the experts only those that one token goes through."""
        layer, dense, sparse = 2 * self.head_dim * (self.num_heads + self.num_kv_heads), self.num_layers, 0
        if self.experts is not None:
            dense -= len(self.experts.layers)
            used = self.experts.per_token if read else self.experts.count
            sparse = len(self.experts.layers) * (self.experts.count + 3 * used * self.experts.size)
        layers = self.num_layers * layer + 3 * dense * self.intermediate_size + sparse
        return self.hidden_size * (layers + self.vocab_size * (2 - self.tie_embeddings))

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of K and V that one token occupies over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element
