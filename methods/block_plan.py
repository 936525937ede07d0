"""Divide a budget into blocks (sink, window, by the query, by importance) and choose them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from longdecode.engine.errors import ConfigError
from longdecode.kernels.block_choice import BlockShares, choose_ranked
from longdecode.kernels.pooled_keys import Pooling

MINIMUM_BLOCKS = 8
"""Below this a window is one block, whose importance is not final when the window leaves it."""
_BLOCKS = 64
_SMALLEST, _LARGEST = 4, 64

Split = Literal["paper", "code"]


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Blocks of ``block_size`` tokens that one KV head reads: first, latest, by the query, by importance."""

    block_size: int
    pooling: Pooling
    sink: int
    window: int
    by_query: int
    by_importance: int

    @property
    def blocks(self) -> int:
        """Blocks read in all."""
        return self.sink + self.window + self.by_query + self.by_importance

    def in_use(self, lengths: Tensor) -> Tensor:
        """Return the blocks that rows of ``lengths`` tokens have begun."""
        return -torch.div(-lengths, self.block_size, rounding_mode="floor")

    def room(self, capacity: int) -> int:
        """Return the blocks of ``capacity`` tokens."""
        return -(-capacity // self.block_size)

    def tokens_read(self, context_tokens: int) -> int:
        """Return the tokens that a step reads per KV head; the newest block may be cut short."""
        blocks = -(-context_tokens // self.block_size)
        if blocks <= self.blocks:
            return context_tokens
        return (self.blocks - 1) * self.block_size + context_tokens - (blocks - 1) * self.block_size

    @property
    def shares(self) -> BlockShares:
        """Return the blocks of each kind."""
        return BlockShares(self.sink, self.window, self.by_query, self.by_importance)

    def choose(self, query: Tensor, importance: Tensor | None, in_use: Tensor) -> tuple[Tensor, Tensor]:
        """Choose from scores; see ``block_choice.naive.choose_ranked``."""
        return choose_ranked(query, importance, in_use, self.shares)


def automatic_block_size(budget_tokens: int) -> int:
    """Return the block size that makes the budget 64 blocks or a few more: a power of two from 4 to 64."""
    fitting = max(1, budget_tokens // _BLOCKS)
    return min(_LARGEST, max(_SMALLEST, 1 << (fitting.bit_length() - 1)))


def plan_blocks(
    method: str,
    budget_tokens: int,
    block_size: int | None,
    pool_tokens: int | None,
    pool_stride: int | None,
    split: Split,
    by_importance: bool,
) -> BlockPlan:
    """Divide a budget in the ratios of 1 + 16 + 16 + 31 of 64 blocks (``paper``), or 1 + 17 + 15 + 31 (``code``).

    Args:
        method: for messages.
        budget_tokens: ``MINIMUM_BLOCKS`` blocks or more.
        block_size: tokens in a block; ``None`` follows from the budget.
        pool_tokens: tokens pooled into one key; ``None`` is half a block.
        pool_stride: tokens between two pooled keys; ``None`` is a quarter of a block.
        split: see above.
        by_importance: the last 31 of 64 go by importance; otherwise by the query too.

    Raises:
        ConfigError: the block is not a multiple of the window, or the window not one of the stride.
    """
    size = block_size or automatic_block_size(budget_tokens)
    pooling = Pooling(pool_tokens or max(1, size // 2), pool_stride or max(1, size // 4))
    if size % pooling.window or pooling.window % pooling.stride:
        raise ConfigError(
            f"{method}: blocks of {size} tokens, windows of {pooling.window}, a stride of {pooling.stride}: "
            "a block must be a multiple of the window, a window one of the stride"
        )
    blocks, beyond = budget_tokens // size, int(split == "code")
    sink, quarter = max(1, round(blocks / _BLOCKS)), round(blocks / 4)
    window, query = quarter + beyond, quarter - beyond
    rest = blocks - sink - window - query
    if by_importance:
        return BlockPlan(size, pooling, sink, window, query, rest)
    return BlockPlan(size, pooling, sink, window, query + rest, 0)
