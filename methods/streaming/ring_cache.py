"""A cache that holds the first tokens and the latest ones, and overwrites the rest."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from longdecode.engine.kv_cache import KVCache


class RingCache(KVCache):
    """A cache of ``capacity`` tokens: ``sinks`` slots for the first tokens, the others a ring of the latest.

    The token at position ``p`` lives in slot ``p`` while it is a sink and in ``sinks + (p - sinks) mod ring`` after
    that, so the stored slots are always ``0 .. lengths``. Keys keep the rotation they came with.
    """

    sinks: int

    @classmethod
    def compacted(cls, full: KVCache, capacity: int, sinks: int) -> RingCache:
        """Keep the sinks and the latest ``capacity - sinks`` tokens of each row; ``full``'s slots are positions."""
        ring = cls(full.config, full.batch, capacity, device=full.device, dtype=full.k.dtype)
        ring.sinks = sinks
        slots = torch.arange(capacity, device=full.device)
        newest = full.lengths[:, None] - 1
        # The latest position before the length that maps to each ring slot; negative where none does yet.
        latest = newest - (newest - slots).remainder(capacity - sinks)
        source = torch.where(slots < sinks, slots, latest).clamp(0, full.capacity - 1)
        shape = (full.batch, ring.k.shape[2], capacity, ring.k.shape[4])
        index = source[:, None, :, None].expand(shape)
        for layer in range(ring.k.shape[0]):
            torch.gather(full.k[layer], 2, index, out=ring.k[layer])
            torch.gather(full.v[layer], 2, index, out=ring.v[layer])
        ring.lengths.copy_(full.lengths.clamp(max=capacity))
        ring.positions.copy_(full.positions)
        return ring

    def slots(self) -> Tensor:
        """Where each row's current token is stored, ``[B]``: over the oldest token of the ring, once it is full."""
        turned = self.sinks + (self.positions - self.sinks).remainder(self.capacity - self.sinks)
        return torch.where(self.positions < self.sinks, self.positions, turned)

    def visible_lengths(self) -> Tensor:
        """Tokens a decode query may read, the one just appended included, ``[B]``: never more than the capacity."""
        return (self.lengths + 1).clamp(max=self.capacity)

    def evicted(self) -> Tensor:
        """Tokens dropped so far once the current one is stored, ``[B]``."""
        return (self.positions + 1 - self.capacity).clamp(min=0)

    def advance(self, active: Tensor) -> None:
        """Count one more token for the rows where ``active`` (``[B]`` bool) holds; a full row's length stays."""
        step = active.to(self.lengths.dtype)
        self.lengths.copy_((self.lengths + step).clamp(max=self.capacity))
        self.positions += step

    def clone(self) -> RingCache:
        """A copy that shares nothing."""
        other = cast(RingCache, super().clone())
        other.sinks = self.sinks
        return other
