"""The difference between a new selection and the blocks at hand, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.kernels.layout import before

NEVER = torch.iinfo(torch.int64).max
"""Age of a slot that is no victim."""


@dataclass(frozen=True, slots=True)
class Residents:
    """Hold the state of one layer's slots.

    ``blocks`` ``[B, Hkv, S]`` int64, the block in each slot, -1 for none. The last slot holds the block that is being
    filled and is never given away. ``used`` ``[B, Hkv, S]`` int64, when a slot was last listed, -1 for never. ``clock``
    ``[1]`` int64, the present. ``fetched`` ``[B]`` int64 counts the blocks queued. ``like`` is a tensor whose device
    and dtype say which kernels run. All are contiguous.
    """

    blocks: Tensor
    used: Tensor
    clock: Tensor
    fetched: Tensor
    like: Tensor


@dataclass(frozen=True, slots=True)
class BlockQueue:
    """Blocks to copy: ``sources`` and ``targets`` ``[Q + 1]`` int64 (the last is spare), ``count`` ``[1]`` int64."""

    sources: Tensor
    targets: Tensor
    count: Tensor


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Say which list entries are being copied: ``state`` ``[B, Hkv, N]`` int32, contiguous.

    0 is an entry that was at hand, 1 one that is late, 2 one that has arrived since. ``entries`` ``[Q + 1]`` int64: for
    each queued block its place in the flattened ``state``.
    """

    state: Tensor
    entries: Tensor


def claim_slots(
    indices: Tensor,
    counts: Tensor,
    residents: Residents,
    queue: BlockQueue,
    blocks: int,
    arrivals: Arrivals | None = None,
) -> Tensor:
    """Return the slot of every listed block; queue the missing ones into the slots that were unused the longest.

    A listed block that some slot holds stays there (the lowest slot, where several hold it; the others are free). The
    ``i``-th missing block of a list takes the ``i``-th slot that holds none of these and is not the last, in the order
    of ``used`` and then of slots. Entries outside ``0 .. newest`` are ignored, ``newest`` being the block in the last
    slot; so are missing blocks for which no slot is left. Changes ``residents`` and ``queue`` in place.

    Args:
        indices: ``[B, Hkv, N]`` int64 block numbers, any strides.
        counts: ``[B, Hkv]`` int64, valid leading entries.
        residents: of the layer.
        queue: room for ``B * Hkv * N`` more; sources are ``list * blocks + block``, targets ``list * S + slot`` with
            ``list = b * Hkv + h``. The order of entries is any.
        blocks: blocks of a row in host memory.
        arrivals: to be filled: the entries that are queued.

    Returns:
        ``[B, Hkv, N]`` int64, contiguous; 0 for entries that are not valid or ignored.

    Source: the diff of the released NOSI engine (thunlp/NOSA) has one slot a selected block; spare slots and the order
    of victims are this project's.
    """
    held, used = residents.blocks, residents.used
    slots, width = held.shape[2], indices.shape[2]
    place = torch.arange(slots, device=held.device)
    valid = before(counts, width) & (indices >= 0) & (indices <= held[..., -1:])
    match = valid[..., None] & (indices[..., None] == held[:, :, None])
    hit, at = match.any(dim=3), match.to(torch.uint8).argmax(dim=3)
    wanted = (match & (at[..., None] == place)).any(dim=2)
    age = torch.where(wanted | (place == slots - 1), NEVER, (used + 1) * slots + place)
    victims = age.argsort(dim=2)
    missing = valid & ~hit
    rank = missing.long().cumsum(dim=2) - 1
    claimed = missing & (rank < (age != NEVER).sum(dim=2, keepdim=True))
    fresh = victims.gather(2, rank.clamp(0, slots - 1))
    chosen = torch.where(hit, at, torch.where(claimed, fresh, 0))

    now = residents.clock.expand_as(used)
    column = torch.where(claimed, fresh, slots)
    for tensor, value, kept in (
        (held, indices, held),
        (used, now[..., :1].expand_as(indices), _renewed(used, wanted, now)),
    ):
        wide = torch.cat((kept, kept[..., :1]), dim=2).scatter(2, column, value)
        tensor.copy_(wide[..., :slots])
    if arrivals is not None:
        arrivals.state.copy_(claimed)
    _enqueue(queue, indices, chosen, claimed, blocks, slots, arrivals)
    residents.fetched.add_(claimed.sum(dim=(1, 2)))
    return chosen


def values_in_slots(values: Tensor, held: Tensor, block_size: int) -> Tensor:
    """Return one number a token from where it stands by position to where its block's slot is.

    Args:
        values: ``[B, H, S]``.
        held: ``[B, H, slots]`` int64, the block in each slot; -1 gives any number.
        block_size: tokens in a block.

    Returns:
        ``[B, H, slots * block_size]``, contiguous.
    """
    first = held.clamp(min=0) * block_size
    tokens = (first[..., None] + torch.arange(block_size, device=held.device)).flatten(2)
    return values.gather(2, tokens.clamp(max=values.shape[2] - 1))


def _renewed(used: Tensor, wanted: Tensor, now: Tensor) -> Tensor:
    return torch.where(wanted, now, used)


def _enqueue(
    queue: BlockQueue, indices: Tensor, chosen: Tensor, claimed: Tensor, blocks: int, slots: int,
    arrivals: Arrivals | None,
) -> None:  # fmt: skip
    batch, heads, _ = indices.shape
    lists = torch.arange(batch * heads, device=indices.device).view(batch, heads, 1)
    flat = claimed.flatten()
    last = queue.sources.shape[0] - 1
    spot = torch.where(flat, queue.count + flat.long().cumsum(dim=0) - 1, last)
    queue.sources.scatter_(0, spot, (lists * blocks + indices).flatten())
    queue.targets.scatter_(0, spot, (lists * slots + chosen).flatten())
    if arrivals is not None:
        arrivals.entries.scatter_(0, spot, torch.arange(len(flat), device=flat.device))
    queue.count.add_(flat.sum())
