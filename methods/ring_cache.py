"""A cache that holds the first tokens and the latest ones, and overwrites the rest."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor

from longdecode.engine.kv_cache import KVCache


def ring_source(lengths: Tensor, stored: int, capacity: int, sinks: int) -> Tensor:
    """Where the tokens of a ring come from when a whole cache is cut down to it.

    The token at position ``p`` belongs in slot ``p`` while it is a sink and in ``sinks + (p - sinks) mod ring`` after
    that, ``ring = capacity - sinks``.

    Args:
        lengths: ``[B]`` int64, tokens of each row; their slots are their positions.
        stored: slots a row of the whole cache.
        capacity: slots a row of the ring.
        sinks: first tokens, which stay where they are.

    Returns:
        ``[B, capacity]`` int64, the slot that each of the ring's slots is filled from; any where a row is shorter.
    """
    slots = torch.arange(capacity, device=lengths.device)
    newest = lengths[:, None] - 1
    # The latest position before the length that maps to each ring slot; negative where none does yet.
    latest = newest - (newest - slots).remainder(capacity - sinks)
    return torch.where(slots < sinks, slots, latest).clamp(0, stored - 1)


def ring_slots(positions: Tensor, capacity: int, sinks: int) -> Tensor:
    """The ring's slot of the token at each row's position, ``[B]``: over the oldest one, once the ring is full."""
    turned = sinks + (positions - sinks).remainder(capacity - sinks)
    return torch.where(positions < sinks, positions, turned)


class RingCache(KVCache):
    """A cache of ``capacity`` tokens: ``sinks`` slots for the first tokens, the others a ring of the latest.

    The token at position ``p`` lives in slot ``p`` while it is a sink and in ``sinks + (p - sinks) mod ring`` after
    that, so the stored slots are always ``0 .. lengths``. Keys keep the rotation they came with.
    """

    evicts: ClassVar[bool] = True
    sinks: int

    @classmethod
    def compacted(cls, full: KVCache, capacity: int, sinks: int) -> RingCache:
        """Keep the sinks and the latest ``capacity - sinks`` tokens of each row; ``full``'s slots are positions."""
        ring = cls(full.config, full.batch, capacity, device=full.device, dtype=full.k.dtype)
        ring.sinks = sinks
        source = ring_source(full.lengths, full.capacity, capacity, sinks)
        shape = (full.batch, ring.k.shape[2], capacity, ring.k.shape[4])
        index = source[:, None, :, None].expand(shape)
        for layer in range(ring.k.shape[0]):
            torch.gather(full.k[layer], 2, index, out=ring.k[layer])
            torch.gather(full.v[layer], 2, index, out=ring.v[layer])
        ring.lengths.copy_(full.lengths.clamp(max=capacity))
        ring.positions.copy_(full.positions)
        return ring

    def slot_mapping(self) -> Tensor:
        """Where each row's current token is stored, ``[B]``: over the oldest token of the ring, once it is full."""
        return ring_slots(self.positions, self.capacity, self.sinks)

    def kv_lengths(self) -> Tensor:
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
