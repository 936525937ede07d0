"""Moves of tokens between slots of caches, all layers at once, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PartialSlots:
    """A cache that tokens fill: keys and values ``[L, B, Hkv, S', D]`` and, ``[B]`` int64 each, what it holds.

    The ``i``-th token since the last build goes to slot ``held + i`` and, from ``budget`` on, to ``budget - 1 - i``.
    """

    k: Tensor
    v: Tensor
    held: Tensor
    newer: Tensor
    budget: int

    def slots(self, width: int) -> Tensor:
        """Return the slots ``[B, width]`` of the next tokens."""
        since = self.newer[:, None] + torch.arange(width, device=self.newer.device)
        free = (self.budget - self.held)[:, None]
        return torch.where(since < free, self.held[:, None] + since, self.budget - 1 - since).clamp(min=0)


def compact_tokens(k: Tensor, v: Tensor, starts: Tensor, rows: Tensor) -> None:
    """Move tokens of a block to its first slots; all are read before one is written.

    Args:
        k: ``[L, B, Hkv, S, D]``.
        v: likewise.
        starts: ``[B]`` int64, the block's first slots.
        rows: ``[B, N]`` int64, the block row that goes to place ``n``. Slots past the end mean the last one.
    """
    places = torch.arange(rows.shape[1], device=rows.device)
    source, target = ((starts[:, None] + at).clamp(max=k.shape[3] - 1) for at in (rows, places))
    for tensor in (k, v):
        shape = (*tensor.shape[:3], rows.shape[1], tensor.shape[4])
        index, into = (slots[None, :, None, :, None].expand(shape) for slots in (source, target))
        tensor.scatter_(3, into, tensor.gather(3, index))


def fill_tokens(k: Tensor, v: Tensor, starts: Tensor, kept: Tensor, width: int, into: PartialSlots) -> None:
    """Copy the first ``kept`` of ``width`` tokens to where a cache wants its next ones; counters stay.

    Args:
        k: ``[L, B, Hkv, S, D]``, the slot of a token being its position.
        v: likewise.
        starts: ``[B]`` int64, the first token's slot.
        kept: ``[B]`` int64, at most ``width``.
        width: tokens looked at.
        into: the cache.
    """
    places = torch.arange(width, device=starts.device)
    source = (starts[:, None] + places).clamp(max=k.shape[3] - 1)
    taken, slots = (places < kept[:, None])[None, :, None, :, None], into.slots(width)
    for dense, stored in ((k, into.k), (v, into.v)):
        shape = (*dense.shape[:3], width, dense.shape[4])
        index, target = (at[None, :, None, :, None].expand(shape) for at in (source, slots))
        stored.scatter_(3, target, torch.where(taken, dense.gather(3, index), stored.gather(3, target)))
