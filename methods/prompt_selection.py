"""Prefill in which every prompt token chooses what it reads."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.kernels.sparse_prefill_attention import sparse_prefill_attention
from longdecode.methods.budgeted import BudgetedMethod

_NUMBERS_AT_ONCE = 1 << 25
"""Scores held while a stretch of queries selects: 128 MiB in float32."""


@dataclass(frozen=True, slots=True)
class PromptIndex:
    """Hold what prompt queries choose by: pooled keys ``[R, Hkv, M, D]``, importance of blocks ``[R, Hkv, N]``.

    ``bias`` ``[R, Hkv, S]`` is added to the logits; ``None`` adds nothing.
    """

    pooled: Tensor | None = None
    by_block: Tensor | None = None
    bias: Tensor | None = None


class SelectivePrefill(BudgetedMethod):
    """A method whose selection holds for prompt tokens too; its prompts are its own, no other method shares them."""

    @property
    @abstractmethod
    def list_block(self) -> int:
        """Tokens of a block that a selection lists."""

    @property
    @abstractmethod
    def forced(self) -> tuple[int, int]:
        """First and latest blocks that every query reads."""

    @abstractmethod
    def index_prompt(self, layer: int, keys: Tensor, values: Tensor) -> PromptIndex:
        """Prepare what the queries of one layer choose by, of keys and values ``[R, Hkv, S, D]`` in order."""

    @abstractmethod
    def select_prompt(self, q: Tensor, index: PromptIndex, start: int, stop: int) -> Tensor:
        """Return the blocks that each query reads, ``[R, Hkv, T, ceil(stop / list_block)]`` bool.

        Args:
            q: ``[R, Hq, T, D]``, positions ``start ..``.
            index: of the layer, over ``stop`` tokens or more.
            start: position of the first query.
            stop: tokens up to the last query.
        """

    @abstractmethod
    def prompt_cost(self, stop: int) -> int:
        """Return how many numbers the selection of one query of one row holds, ``stop`` tokens being known."""

    def attend_prompt(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        """Select and read, a stretch of queries at a time so that their scores fit; see ``AttentionMethod``."""
        rows, _, queries, _ = q.shape
        index = self.index_prompt(layer, keys, values)
        stretch = max(16, _NUMBERS_AT_ONCE // (rows * self.prompt_cost(keys.shape[2])))
        out = []
        for first in range(0, queries, stretch):
            some = q[:, :, first : first + stretch]
            at, stop = start + first, start + first + some.shape[2]
            read = self.select_prompt(some, index, at, stop)
            bias = None if index.bias is None else index.bias[..., :stop]
            known = keys[:, :, :stop], values[:, :, :stop]
            out.append(sparse_prefill_attention(some, *known, at, read, self.list_block, bias))
        return torch.cat(out, dim=2)


def listed_blocks(places: Tensor, counts: Tensor, blocks: int, rows: int) -> Tensor:
    """Return lists of block numbers as a mask.

    Args:
        places: ``[R * T, H, K]`` int64.
        counts: ``[R * T, H]`` int64, valid leading entries.
        blocks: ``N``.
        rows: ``R``.

    Returns:
        ``[R, H, T, N]`` bool.
    """
    valid = torch.arange(places.shape[2], device=places.device) < counts[..., None]
    read = torch.zeros(*places.shape[:2], blocks + 1, dtype=torch.bool, device=places.device)
    read.scatter_(2, torch.where(valid, places, blocks), True)
    return read[..., :blocks].unflatten(0, (rows, -1)).transpose(1, 2)
