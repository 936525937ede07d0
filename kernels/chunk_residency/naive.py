"""Slots of listed chunks in plain torch; a chunk that stays listed stays where it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.kernels.block_residency.naive import BlockQueue
from longdecode.kernels.layout import before


@dataclass(frozen=True, slots=True)
class ChunkResidents:
    """Hold which chunk each slot of one layer has, and which slot each chunk.

    ``held`` ``[B, Hkv, S + 1]`` int32, the chunk in each slot, and ``slot_of`` ``[B, Hkv, C + 1]`` int32, the slot of
    each chunk; -1 for none, the last entry of each is spare. ``fetched`` ``[B]`` int64 counts the chunks queued.
    ``like`` is a tensor whose device and dtype say which kernels run. All are contiguous.
    """

    held: Tensor
    slot_of: Tensor
    fetched: Tensor
    like: Tensor

    @property
    def slots(self) -> int:
        """Slots of a list."""
        return self.held.shape[2] - 1

    @property
    def chunks(self) -> int:
        """Chunks that a list may name."""
        return self.slot_of.shape[2] - 1


def claim_chunks(indices: Tensor, counts: Tensor, residents: ChunkResidents, queue: BlockQueue, out: Tensor) -> None:
    """Write the slot of every listed chunk; queue the missing ones into slots whose chunk is no longer listed.

    The ``i``-th missing chunk of a list takes the ``i``-th slot that holds no listed chunk. Each chunk's slot is looked
    up, so that the work grows with the list and not with list times slots, as in ``block_residency``, which keeps
    spare slots besides. Changes ``residents``, ``queue`` and ``out`` in place.

    Args:
        indices: ``[B, Hkv, N]`` int64 chunk numbers below ``C``, no list naming one twice; ``N`` is at most ``S``.
        counts: ``[B, Hkv]`` int64, valid leading entries.
        residents: of the layer.
        queue: room for ``B * Hkv * N`` more; sources are ``list * C + chunk``, targets ``list * S + slot`` with
            ``list = b * Hkv + h``. The order of entries is any.
        out: ``[B, Hkv, W]`` int64, ``W`` at least ``N``; entries at or past the count stay as they are.

    Raises:
        ValueError: a list is longer than there are slots or entries of ``out``.

    Source: the released ShadowKV (ByteDance-Seed/ShadowKV) keeps on the device what the step before fetched; the table
    of slots is this project's.
    """
    check_room(indices, residents, out)
    batch, heads, width = indices.shape
    slots, chunks = residents.slots, residents.chunks
    valid = before(counts, width)
    listed = torch.where(valid, indices, chunks)
    at = residents.slot_of.gather(2, listed).long()
    hit = valid & (at >= 0)
    stays = torch.zeros(batch, heads, slots + 1, dtype=torch.uint8, device=at.device)
    stays.scatter_(2, torch.where(hit, at, slots), 1)
    free = stays[..., :slots].argsort(dim=2, stable=True)
    missing = valid & ~hit
    fresh = free.gather(2, (missing.long().cumsum(dim=2) - 1).clamp(min=0))
    chosen = torch.where(hit, at, fresh)

    place = torch.where(missing, fresh, slots)
    old = torch.where(missing, residents.held.gather(2, place).long(), -1)
    gone = torch.where(old >= 0, old, chunks)
    residents.slot_of.scatter_(2, gone, -1)
    residents.slot_of.scatter_(2, torch.where(missing, indices, chunks), fresh.int())
    residents.held.scatter_(2, place, indices.int())
    residents.slot_of[..., chunks] = -1
    residents.held[..., slots] = -1
    out[..., :width] = torch.where(valid, chosen, out[..., :width])

    lists = torch.arange(batch * heads, device=at.device).view(batch, heads, 1)
    flat = missing.flatten()
    spot = torch.where(flat, queue.count + flat.long().cumsum(dim=0) - 1, queue.sources.shape[0] - 1)
    queue.sources.scatter_(0, spot, (lists * chunks + indices).flatten())
    queue.targets.scatter_(0, spot, (lists * slots + chosen).flatten())
    queue.count.add_(flat.sum())
    residents.fetched.add_(missing.sum(dim=(1, 2)))


def check_room(indices: Tensor, residents: ChunkResidents, out: Tensor) -> None:
    """Refuse lists that do not fit the slots or the output.

    Raises:
        ValueError: as said.
    """
    width = indices.shape[2]
    if width > residents.slots or width > out.shape[2]:
        raise ValueError(f"lists of {width} chunks; {residents.slots} slots and {out.shape[2]} entries for them")
