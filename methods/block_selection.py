"""Block-sparse attention by pooled keys and, where a method has them, importance heads: prefill and decode alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import KVCache, WholeCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.block_choice import choose_blocks
from longdecode.kernels.block_score import block_scores, newest_first, normaliser
from longdecode.kernels.importance import (
    Importance,
    ImportanceWeights,
    append_importance,
    block_importance,
    ranked,
    token_importance,
)
from longdecode.kernels.layout import accumulator, before, fold_group
from longdecode.kernels.pooled_keys import PooledKeys, append_pooled_key, build_pooled_keys
from longdecode.methods.block_plan import MINIMUM_BLOCKS, Split, automatic_block_size, plan_blocks
from longdecode.methods.importance_heads import ImportanceHeads
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.prompt_selection import PromptIndex, SelectivePrefill, listed_blocks
from longdecode.methods.rewritten_index import renew_importance, renew_pooled_keys

Normaliser = Literal["exact", "coarse"]


@dataclass(frozen=True, slots=True)
class BlockParams:
    """Knobs of block selection; sizes left out follow from the budget."""

    block_size: Annotated[int, Field(ge=1)] | None = None
    pool_tokens: Annotated[int, Field(ge=1)] | None = None
    pool_stride: Annotated[int, Field(ge=1)] | None = None
    split: Split = "paper"
    normaliser: Normaliser = "exact"
    offload: bool = False
    spare_slots: Annotated[int, Field(ge=0)] = 0
    prefetch: bool = False
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class LayerIndex:
    """All that one layer's selection needs of the past, whatever cache holds the keys and values."""

    pooled: PooledKeys
    importance: Importance | None


@dataclass(slots=True)
class BlockIndex:
    """The index of every layer, and of the coming step: tokens ``[B]``, complete windows ``[B]``, blocks ``[B]``."""

    layers: list[LayerIndex]
    lengths: Tensor
    windows: Tensor
    blocks: Tensor


class BlockSelection(Offloadable, SelectivePrefill):
    """Every query of every KV head reads a fixed number of blocks: first, latest, best by pooled keys, most important.

    The same rule holds for prompt tokens and decoded ones. Subclasses set ``heads`` for importance, which is then added
    to the logits too.
    """

    params: BlockParams
    used_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "spare_slots": {"offload": True},
        "prefetch": {"offload": True},
    }
    heads: ImportanceHeads | None = None

    def __init__(self, params: Any, config: ModelConfig, budget_tokens: int, by_importance: bool = False):
        super().__init__(params, config, budget_tokens)
        self.plan = plan_blocks(
            self.name, budget_tokens, params.block_size, params.pool_tokens, params.pool_stride, params.split,
            by_importance,
        )  # fmt: skip

    @classmethod
    def minimum_budget(cls, params: Any) -> tuple[int, str]:
        """Eight blocks: below that the window is one block."""
        size = params.block_size or automatic_block_size(1)
        return MINIMUM_BLOCKS * size, f"{MINIMUM_BLOCKS} blocks of {size}"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Chosen blocks; pooled keys, and for importance a float32 a block and one a token read."""
        windows = max(0, (context_tokens - self.plan.pooling.window) // self.plan.pooling.stride + 1)
        heads, read = self.config.num_kv_heads, self.plan.tokens_read(context_tokens)
        metadata = windows * heads * self.config.head_dim * bytes_per_element
        if self.heads is not None:
            metadata += 4 * heads * (self.plan.room(context_tokens) + read)
        traffic = self.layered_traffic(context_tokens, read, self.config.num_layers * metadata, bytes_per_element)
        return replace(traffic, host_bytes=self.host_bytes(context_tokens, bytes_per_element))

    @property
    def listed_blocks(self) -> int:
        """See ``Offloadable.listed_blocks``; the newest block is always listed."""
        return self.plan.blocks

    @property
    def block_tokens(self) -> int:
        """See ``Offloadable.block_tokens``."""
        return self.plan.block_size

    def weights(self, layer: int, device: torch.device) -> ImportanceWeights | None:
        """Return the importance heads of a layer."""
        return None if self.heads is None else self.heads.layer(layer, device)

    def bias(self, tokens: Tensor) -> Tensor:
        """Return what a decode step adds to the logits, of the importances ``[B, Hkv, S]``."""
        return tokens

    # Prefill

    @property
    def list_block(self) -> int:
        """See ``SelectivePrefill.list_block``."""
        return self.plan.block_size

    @property
    def forced(self) -> tuple[int, int]:
        """See ``SelectivePrefill.forced``."""
        return self.plan.sink, self.plan.window

    def index_prompt(self, layer: int, keys: Tensor, values: Tensor) -> PromptIndex:
        """Pool keys and, where there are importance heads, importances."""
        plan, whole = self.plan, torch.full((keys.shape[0],), keys.shape[2], device=keys.device)
        pooled = build_pooled_keys(keys, whole, plan.pooling, keys.shape[2]).means
        if (weights := self.weights(layer, keys.device)) is None:
            return PromptIndex(pooled)
        bias = token_importance(values, weights)
        return PromptIndex(pooled, block_importance(bias, whole, plan.pooling, plan.block_size), bias)

    def select_prompt(self, q: Tensor, index: PromptIndex, start: int, stop: int) -> Tensor:
        """See ``SelectivePrefill.select_prompt``; a window counts for the queries that it lies wholly before.

        The importance of a block may look past a query for blocks of its window alone, which it reads anyway.
        """
        assert index.pooled is not None
        plan, (rows, heads, queries, _), kv_heads = self.plan, q.shape, index.pooled.shape[1]
        seen = torch.arange(start + 1, start + queries + 1, device=q.device).repeat(rows)
        windows, blocks, room = plan.pooling.complete(seen), plan.in_use(seen), plan.room(stop)
        pooled = index.pooled[:, :, : plan.pooling.room(stop)].to(accumulator(q.dtype))
        folded = fold_group(q, kv_heads).to(pooled.dtype) * q.shape[-1] ** -0.5
        logits = (folded @ pooled.transpose(-1, -2)).view(rows, heads, queries, -1)
        logits = logits.transpose(1, 2).reshape(rows * queries, heads, -1)
        logits = torch.where(before(windows, logits.shape[-1])[:, None], logits, float("-inf"))
        scores, ranking = self.score(logits, windows, blocks, kv_heads, room), None
        if index.by_block is not None:
            by_block = index.by_block[:, None, :, :room].expand(rows, queries, kv_heads, room)
            ranking = newest_first(ranked(by_block.flatten(0, 1)), blocks, float("-inf"))
        return listed_blocks(*plan.choose(scores, ranking, blocks), room, rows)

    def prompt_cost(self, stop: int) -> int:
        """See ``SelectivePrefill.prompt_cost``."""
        return self.config.num_heads * self.plan.pooling.room(stop)

    def score(self, logits: Tensor, windows: Tensor, blocks: Tensor, kv_heads: int, room: int) -> Tensor:
        """Return block scores from the newest block back, ``[B, Hkv, room]``, of logits ``[B, Hq, M]``."""
        lse = normaliser(logits, windows, self.plan.pooling, self.params.normaliser)
        return block_scores(logits, lse, blocks, kv_heads, self.plan.pooling, self.plan.block_size, room)

    # Decode

    def build_index(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor, capacity: int) -> LayerIndex:
        """Return the index of one prefilled layer.

        Args:
            layer: from 0.
            keys: ``[B, Hkv, S, D]``, slots in order of position.
            values: ``[B, Hkv, S, D]``.
            lengths: ``[B]`` int64, tokens of each row.
            capacity: tokens that a row may reach.
        """
        pooled = build_pooled_keys(keys, lengths, self.plan.pooling, capacity)
        if (weights := self.weights(layer, keys.device)) is None:
            return LayerIndex(pooled, None)
        tokens = keys.new_zeros(*keys.shape[:2], capacity, dtype=accumulator(keys.dtype))
        tokens[:, :, : keys.shape[2]] = token_importance(values, weights)
        by_block = block_importance(tokens, lengths, self.plan.pooling, self.plan.block_size)
        return LayerIndex(pooled, Importance(tokens, by_block))

    def make_method_state(self, cache: KVCache) -> BlockIndex:
        """Build the index of every layer."""
        if not isinstance(cache, WholeCache):
            raise UnsupportedCellError(f"{self.name} finds no keys to pool in a {type(cache).__name__}")
        layers = [
            self.build_index(n, cache.keys(n), cache.values(n), cache.lengths, cache.capacity)
            for n in range(self.config.num_layers)
        ]
        return BlockIndex(layers, *[torch.zeros_like(cache.positions)] * 3)

    def before_step(self, state: DecodeState) -> None:
        """Count tokens, complete windows and blocks, the coming token among them."""
        if state.block.width > 1 or state.block.starts is not None:
            raise UnsupportedCellError(f"{self.name} selects for one new row a step, the block has {state.block.width}")
        index: BlockIndex = state.method_state
        index.lengths = state.cache.positions + 1
        index.windows, index.blocks = self.plan.pooling.complete(index.lengths), self.plan.in_use(index.lengths)

    def append(self, layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        """Store the token, and in the index its key and its importance."""
        q = state.cache.append(layer, heads)
        index: BlockIndex = state.method_state
        own = index.layers[layer]
        append_pooled_key(own.pooled, *state.cache.newest_keys(layer), index.lengths, self.plan.pooling)
        if own.importance is not None and (weights := self.weights(layer, q.device)) is not None:
            append_importance(own.importance, heads.v, weights, index.lengths, self.plan.pooling, self.plan.block_size)
        return q

    def after_rewrite(self, state: DecodeState, starts: Tensor, width: int) -> None:
        """Pool and weigh anew what was written over: a draft's tokens, and one that was verified without a draft."""
        cache, plan = state.dense, self.plan
        for layer, own in enumerate(state.method_state.layers):
            keys, values = cache.keys(layer), cache.values(layer)
            renew_pooled_keys(own.pooled, keys, starts, width, cache.lengths, plan.pooling)
            if own.importance is not None and (weights := self.weights(layer, keys.device)) is not None:
                renew_importance(
                    own.importance, values, weights, starts, width, cache.lengths, plan.pooling, plan.block_size
                )

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection:
        """Choose the blocks of a step, the newest first."""
        index: BlockIndex = state.method_state
        own, room = index.layers[layer], self.plan.room(state.cache.shape.capacity)
        chosen, counts = choose_blocks(
            q, own.pooled.means, index.windows, index.blocks, None if own.importance is None else own.importance.blocks,
            self.plan.shares, self.plan.pooling, self.plan.block_size, room, self.params.normaliser,
        )  # fmt: skip
        return Selection(chosen, counts, self.plan.block_size)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Select and read, with the importances in the logits."""
        selection, own = self.select(layer, q, state), state.method_state.layers[layer]
        bias = None if own.importance is None else self.bias(own.importance.tokens)
        return self.attend_selected(layer, q, selection, state, bias=bias)
