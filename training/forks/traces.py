"""Selections of a decode, recorded in order: sets by step, and what a resident set of slots would miss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

_CPU = torch.device("cpu")
EMPTY = 65_535
"""Stands in a slot without a block."""


@dataclass(frozen=True)
class BlockTrace:
    """Blocks read by step: ``ids`` ``[steps, L, B, H, K]`` uint16, ``EMPTY`` where fewer are read, in any order.

    ``about`` says what made it: model, label, method, budget, block size, context, forced first and latest blocks.
    ``device`` is where it is counted.
    """

    ids: np.ndarray
    about: Mapping[str, Any]
    device: torch.device = _CPU

    @cached_property
    def table(self) -> Tensor:
        """Mark the blocks that each step reads, ``[steps, L, B, H, N]`` bool, on ``device``."""
        blocks = int(self.ids[self.ids != EMPTY].max()) + 1
        places = torch.from_numpy(np.minimum(self.ids, np.uint16(blocks)).astype(np.int32)).to(self.device)
        read = torch.zeros(*places.shape[:-1], blocks + 1, dtype=torch.bool, device=self.device)
        return read.scatter_(-1, places.long(), True)[..., :blocks]

    def overlaps(self) -> np.ndarray:
        """Return the share of each step's blocks that the step before read too, ``[steps - 1, L, B, H]``."""
        return _shared(self.table)

    def free_overlaps(self) -> np.ndarray:
        """Return the same without the blocks that every query reads; 1 where there are no others."""
        first, latest = self.about["forced"]
        number = torch.arange(self.table.shape[-1], device=self.device)
        newest = (self.table * number).amax(dim=-1, keepdim=True)
        return _shared(self.table & (number >= first) & (number <= newest - latest))

    def union(self) -> np.ndarray:
        """Return the share of the blocks in use at the end that some step read, ``[L, B, H]``."""
        read = self.table.any(dim=0)
        number = torch.arange(read.shape[-1], device=self.device)
        return _numbers(read.sum(dim=-1) / ((read * number).amax(dim=-1) + 1))

    def misses(self, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return by size the mean misses a step, ``[L, B, H]``, of a set of so many blocks that drops the least recent.

        Of blocks read in one step the smallest number counts as the least recent. The first step fills the set and is
        left out.
        """
        steps, *places, blocks = self.table.shape
        number = torch.arange(blocks, device=self.device)
        # A set of any size holds the first of one order: by the step last read in, then by number.
        order = torch.full((*places, blocks), -1, dtype=torch.int64, device=self.device)
        missed = torch.zeros(len(sizes), *places, dtype=torch.int64, device=self.device)
        for step, read in enumerate(self.table):
            if step:
                ranks = order.argsort(dim=-1, descending=True).argsort(dim=-1)
                for found, size in zip(missed, sizes, strict=True):
                    found += (read & ((ranks >= size) | (order < 0))).sum(dim=-1)
            order = torch.where(read, step * blocks + number, order)
        return [_numbers(found / max(1, steps - 1)) for found in missed]


def _shared(table: Tensor) -> np.ndarray:
    """Return the share of each step's blocks that the step before has too; 1 where it has none."""
    count, both = table[1:].sum(dim=-1), (table[1:] & table[:-1]).sum(dim=-1)
    return _numbers(torch.where(count > 0, both / count.clamp(min=1), 1.0))


def _numbers(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
