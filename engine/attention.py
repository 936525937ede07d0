"""The contract between the decoder and an attention method: what each query reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from longdecode.engine.correction import Correction
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.rope_append import rope_append
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention


@dataclass(slots=True)
class Selection:
    """The part of one layer's cache that a decode step reads.

    ``indices`` is ``[B, Hs, N]`` int64, block numbers (``block_size`` tokens each); ``counts`` is ``[B, Hs]`` int64,
    how many leading entries of each list are valid, or ``EVERYTHING`` for a list that reads the whole row. ``Hs`` is
    the number of KV heads (a GQA group shares one list) or of query heads (each reads its own). ``uneven`` says that
    lists may differ much in length, so that the kernel shares their tokens out evenly; it changes no result.
    """

    indices: Tensor
    counts: Tensor
    block_size: int
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class TokenHeads:
    """One layer's heads of the current token as they leave the projection: not yet normed, rotated or stored.

    ``q`` is ``[B, Hq, 1, D]``, ``k`` and ``v`` are ``[B, Hkv, 1, D]``, ``cos`` and ``sin`` ``[B, 1, D]``; the norm
    weights ``[D]`` are there for models that normalise queries and keys head by head.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    eps: float = 0.0


class DecodeState:
    """All that one generation keeps; made by ``AttentionMethod.start`` and dropped with the call.

    ``kv_lengths`` (tokens a query may read, the current one included) and ``slot_mapping`` (where the current token is
    stored), both ``[B]`` int64, hold for one step. ``kv_tokens_read`` ``[L, B]`` int64 is added to by kernels: tokens
    loaded, summed over KV heads, whether a row is active or not; ``counted`` follows it for the active rows. ``seen``
    ``[B]`` int64 is what a head that reads everything has read in the steps in which its row was active.
    """

    def __init__(self, cache: KVCache, method_state: Any = None):
        layers = cache.config.num_layers
        self.cache = cache
        self.method_state = method_state
        self.dense = False
        self.active = torch.ones(cache.batch, dtype=torch.bool, device=cache.device)
        self.kv_tokens_read = torch.zeros(layers, cache.batch, dtype=torch.int64, device=cache.device)
        self.counted = torch.zeros_like(self.kv_tokens_read)
        self.seen = torch.zeros(cache.batch, dtype=torch.int64, device=cache.device)
        self.begin_step()

    @property
    def reads(self) -> Tensor:
        """Tokens read per KV head, summed over the decode steps in which a row was active, ``[L, B]`` float64."""
        return self.counted.to(torch.float64) / self.cache.config.num_kv_heads

    def begin_step(self) -> None:
        """Work out once what every layer of the coming step needs."""
        self.kv_lengths = self.cache.kv_lengths()
        self.slot_mapping = self.cache.slot_mapping()

    def finish_step(self) -> None:
        """Count what the active rows read and advance them."""
        torch.where(self.active, self.kv_tokens_read, self.counted, out=self.counted)
        self.seen += self.kv_lengths * self.active
        self.cache.advance(self.active)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes one decode step of one sequence must move for attention, summed over layers.

    ``at_most``: lists are as long as the data makes them, and ``kv_bytes`` is what they take at their longest.
    """

    kv_bytes: int
    metadata_bytes: int = 0
    at_most: bool = False

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

    def dense_heads(self) -> tuple[frozenset[int], ...]:
        """Per layer, the KV heads that read everything whatever the budget; the budget governs the others."""
        dense, heads = self.dense_layers(), frozenset(range(self.config.num_kv_heads))
        return tuple(heads if layer in dense else frozenset() for layer in range(self.config.num_layers))

    @property
    def correction(self) -> Correction | None:
        """What the generation loop does to the cache every few steps; the default is nothing.

        A rewrite changes stored keys: a method that keeps anything computed from them must not ask for one.
        """
        return None

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Bytes a decode step reads at this context; the default is dense attention in every layer."""
        return Traffic(context_tokens * self.config.kv_bytes_per_token(bytes_per_element))

    def traffic_per_token(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Bytes read for each generated token: a step's, and its share of the correction where the cache is corrected.

        A correction reads all keys and values once: a rewrite between two steps, a dense step in the place of one.
        """
        step, correction = self.traffic(context_tokens, bytes_per_element), self.correction
        if correction is None:
            return step
        everything = context_tokens * self.config.kv_bytes_per_token(bytes_per_element)
        sparse_share = (correction.period - (correction.mode == "dense_step")) / correction.period
        return Traffic(
            round(step.kv_bytes * sparse_share + everything / correction.period),
            round(step.metadata_bytes * sparse_share),
            step.at_most,
        )

    def start(self, prompt: KVCache, *, keep_prompt: bool = True) -> DecodeState:
        """Make the state of one generation from a densely prefilled cache.

        Args:
            prompt: the cache after prefill.
            keep_prompt: leave ``prompt`` as it is and decode in a copy; otherwise it may be taken over, which saves its
                memory where nothing else will use it.
        """
        cache = self.after_prefill(prompt)
        if cache is prompt and keep_prompt:
            cache = prompt.clone()
        return DecodeState(cache, self.make_method_state(cache))

    def after_prefill(self, prompt: KVCache) -> KVCache:
        """See the prompt, without changing it; return the cache to decode with.

        Evicting methods return a physically smaller cache of their own, the others ``prompt`` itself.
        """
        return prompt

    def make_method_state(self, cache: KVCache) -> Any:
        """Whatever else the method keeps for a generation (page metadata, inherited selections)."""
        return None

    def before_step(self, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """Work out once what ``select`` needs in every layer of the coming step."""

    def append(self, layer: int, token: TokenHeads, state: DecodeState) -> Tensor:
        """Rotate the token's heads and store its keys and values; returns the rotated queries ``[B, Hq, 1, D]``."""
        return self.store(layer, token, state)

    def store(
        self, layer: int, token: TokenHeads, state: DecodeState, bounds: PageBounds | None = None, page_size: int = 0
    ) -> Tensor:
        """What ``append`` does by default, in one launch; page bounds given with it are widened by the new key."""
        keys, values = state.cache.keys(layer), state.cache.values(layer)
        return rope_append(
            token.q, token.k, token.v, token.cos, token.sin, keys, values, state.slot_mapping,
            q_norm=token.q_norm, k_norm=token.k_norm, eps=token.eps, bounds=bounds, page_size=page_size,
        )  # fmt: skip

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Choose what the queries ``[B, Hq, 1, D]`` of ``layer`` read; ``None`` means everything."""
        return None

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Select and read, in one layer of one decode step, the current token already stored.

        Args:
            q: ``[B, Hq, 1, D]``, rotated.

        Returns:
            ``[B, Hq, 1, D]``.
        """
        selection = self.select(layer, q, state)
        if selection is None:
            return self.attend_all(layer, q, state)
        keys, values = state.cache.keys(layer), state.cache.values(layer)
        return sparse_decode_attention(
            q, keys, values, selection.indices, selection.counts,
            block_size=selection.block_size, kv_lengths=state.kv_lengths, uneven=selection.uneven,
            kv_tokens_read=state.kv_tokens_read[layer],
        )[0]  # fmt: skip

    def attend_all(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read everything that the cache holds of ``layer``; shapes as in ``attend``."""
        keys, values = state.cache.keys(layer), state.cache.values(layer)
        return decode_attention(q, keys, values, state.kv_lengths, kv_tokens_read=state.kv_tokens_read[layer])[0]

    def after_step(self, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """React to a finished decode step, before lengths advance."""
