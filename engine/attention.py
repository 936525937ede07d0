"""The contract between the decoder and an attention method: what each query reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention


@dataclass(slots=True)
class Selection:
    """The part of one layer's cache that a decode step reads.

    ``indices`` is ``[B, Hs, N]`` int64, block numbers (``block_size`` tokens each); ``counts`` is ``[B, Hs]`` int64,
    how many leading entries of each list are valid. ``Hs`` is the number of KV heads (a GQA group shares one list) or
    of query heads (each reads its own).
    """

    indices: Tensor
    counts: Tensor
    block_size: int


@dataclass(slots=True)
class DecodeState:
    """All that one generation keeps; made by ``AttentionMethod.start`` and dropped with the call.

    ``reads`` is ``[L, B]`` float64: tokens read per KV head, summed over the decode steps of each row.
    """

    cache: KVCache
    reads: Tensor
    active: Tensor
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes one decode step of one sequence must move for attention, summed over layers."""

    kv_bytes: int
    metadata_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Keys, values and whatever the selector reads to choose them."""
        return self.kv_bytes + self.metadata_bytes


class AttentionMethod(ABC):
    """What each query reads; every hook defaults to dense attention.

    Subclasses declare ``name``, a frozen dataclass ``Params`` and ``from_budget``. What a generation changes lives in
    its ``DecodeState`` and is changed in place; every hook of a step keeps to fixed shapes and never waits for the
    host, so that the step can be captured as a CUDA graph.
    """

    name: ClassVar[str]
    Params: ClassVar[type]

    def __init__(self, params: Any, config: ModelConfig):
        self.params = params
        self.config = config

    @classmethod
    @abstractmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> AttentionMethod:
        """Build the method for a budget in tokens per KV head (``None``: no budget, for methods that read everything).

        Raises:
            UnsupportedCellError: the budget is below what the method can honour.
            ConfigError: an override names no field of ``Params`` or has a value out of range.
        """

    def dense_layers(self) -> frozenset[int]:
        """Layers that read everything whatever the budget."""
        return frozenset()

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Bytes a decode step reads at this context; the default is dense attention in every layer."""
        return Traffic(context_tokens * self.config.kv_bytes_per_token(bytes_per_element))

    def start(self, prompt: KVCache) -> DecodeState:
        """Make the state of one generation from a densely prefilled cache, which is copied, never changed."""
        cache = self.after_prefill(prompt)
        reads = torch.zeros(cache.k.shape[0], cache.batch, dtype=torch.float64, device=cache.device)
        active = torch.ones(cache.batch, dtype=torch.bool, device=cache.device)
        return DecodeState(cache, reads, active, self.make_extra(cache))

    def after_prefill(self, prompt: KVCache) -> KVCache:
        """See the prompt; return the cache to decode with. Evicting methods return a physically smaller one."""
        return prompt.clone()

    def make_extra(self, cache: KVCache) -> Any:
        """Whatever else the method keeps for a generation (page metadata, inherited selections)."""
        return None

    def on_append(self, layer: int, k: Tensor, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """React to the keys ``[B, Hkv, 1, D]`` just appended to ``layer``."""

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Choose what the queries ``[B, Hq, 1, D]`` of ``layer`` read; ``None`` means everything."""
        return None

    def after_step(self, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """React to a finished decode step, before lengths advance."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, state: DecodeState) -> Tensor:
        """One layer of one decode step: append, select, read. Returns ``[B, Hq, 1, D]``.

        Args:
            q: ``[B, Hq, 1, D]``, rotated.
            k: ``[B, Hkv, 1, D]``, rotated.
            v: ``[B, Hkv, 1, D]``.
        """
        cache = state.cache
        cache.append(layer, k, v)
        self.on_append(layer, k, state)
        selection = self.select(layer, q, state)
        lengths = cache.visible_lengths()
        if selection is None:
            out, _ = decode_attention(q, cache.keys(layer), cache.values(layer), lengths)
            read = lengths.to(torch.float64)
        else:
            out, _ = sparse_decode_attention(
                q, cache.keys(layer), cache.values(layer), selection.indices, selection.counts,
                block_size=selection.block_size, lengths=lengths,
            )  # fmt: skip
            read = tokens_read(selection, lengths, self.config.num_kv_heads)
        state.reads[layer] += torch.where(state.active, read, 0.0)
        return out


def tokens_read(selection: Selection, lengths: Tensor, num_kv_heads: int) -> Tensor:
    """Tokens fetched per KV head and row, ``[B]`` float64; lists of query heads count once each, as they are loaded."""
    slots = torch.arange(selection.indices.shape[-1], device=lengths.device)
    valid = slots < selection.counts[..., None]
    in_block = lengths[:, None, None] - selection.indices * selection.block_size
    tokens = torch.where(valid, in_block.clamp(0, selection.block_size), 0)
    return tokens.sum(dim=(1, 2)).to(torch.float64) / num_kv_heads
