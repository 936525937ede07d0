"""A cache that holds the first tokens and the latest ones, and overwrites the rest."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import CacheShape, KVCache, StepSlots, empty_pair, store_heads
from longdecode.engine.token_block import BlockHeads, write_tokens
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.page_minmax import PageBounds


def ring_source(lengths: Tensor, stored: int, capacity: int, sinks: int) -> Tensor:
    """Return the slots of a dense cache that fill a ring.

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
    """Return the ring slot of the token at each row's position, ``[B]``: the oldest token's, once the ring is full."""
    turned = sinks + (positions - sinks).remainder(capacity - sinks)
    return torch.where(positions < sinks, positions, turned)


class RingCache(KVCache):
    """The first ``sinks`` tokens and a ring of the latest, ``k`` and ``v`` ``[L, B, Hkv, C, D]``.

    The token at position ``p`` lives in slot ``p`` while it is a sink and in ``sinks + (p - sinks) mod ring`` after
    that, so the stored slots are always the first ones. Keys keep the rotation they came with.
    """

    def __init__(self, shape: CacheShape, capacity: int, sinks: int):
        super().__init__(shape)
        self.capacity, self.sinks = capacity, sinks
        config = shape.config
        size = (config.num_layers, shape.batch, config.num_kv_heads, capacity, config.head_dim)
        self.k, self.v = empty_pair(size, shape)

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        yield from (self.k, self.v)

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``."""
        refuse_blocks(self, width, starts)
        self.slot_mapping = ring_slots(self.positions, self.capacity, self.sinks)
        self.kv_lengths = (self.positions + 1).clamp(max=self.capacity)

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``."""
        return store_heads(heads, self.k[layer], self.v[layer], self.slot_mapping, bounds, page_size)

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``."""
        return decode_attention(q, self.k[layer], self.v[layer], self.kv_lengths, kv_tokens_read=kv_tokens_read)[0]

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``."""
        source = ring_source(lengths, keys.shape[2], self.capacity, self.sinks)
        index = source[:, None, :, None].expand(self.k.shape[1:])
        torch.gather(keys, 2, index, out=self.k[layer])
        torch.gather(values, 2, index, out=self.v[layer])

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``."""
        self.positions.copy_(tokens)

    def evicted(self) -> Tensor:
        """Tokens dropped so far once the current one is stored, ``[B]``."""
        return (self.positions + 1 - self.capacity).clamp(min=0)

    def step_slots(self) -> Iterator[StepSlots]:
        """See ``KVCache.step_slots``."""
        layers, batch, heads = self.k.shape[:3]
        rows = torch.arange(batch, device=self.device)[None, :, None].expand(layers, batch, heads).reshape(-1)
        slots = ring_slots(self.positions, self.capacity, self.sinks)[rows]
        for tensor in self.tensors():
            yield StepSlots(tensor.flatten(0, 2), slots, rows)

    def takes_over(self, width: int) -> bool:
        """See ``KVCache.takes_over``: where the ring holds them all at once."""
        return width <= self.capacity - self.sinks

    def take_over(self, k: Tensor, v: Tensor, starts: Tensor, kept: Tensor) -> None:
        """See ``KVCache.take_over``."""
        take_into_ring(self.k, k, starts, kept, self.sinks)
        take_into_ring(self.v, v, starts, kept, self.sinks)
        self.positions.copy_(starts + kept)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``; in order of slots."""
        stored = min(int(self.positions[row]), self.capacity)
        return self.k[layer, row, head, :stored], self.v[layer, row, head, :stored]


def take_into_ring(ring: Tensor, new: Tensor, starts: Tensor, kept: Tensor, sinks: int) -> None:
    """Write tokens ``new`` ``[N, B, H, W, D]`` of positions ``starts ..`` to their slots of a ring, in place."""
    place = torch.arange(new.shape[3], device=new.device)
    slots = ring_slots(starts[:, None] + place, ring.shape[3], sinks)
    taken = place < kept[:, None]
    slots, taken = (part[None, :, None].expand(new.shape[:4]) for part in (slots, taken))
    write_tokens(ring, slots, new, taken)


def refuse_blocks(cache: KVCache, width: int, starts: Tensor | None) -> None:
    """Raise where a cache that drops tokens is given more than one new token a row.

    Raises:
        UnsupportedCellError: storing several tokens at once would drop some that the first of them may still read.
    """
    if width > 1 or starts is not None:
        raise UnsupportedCellError(f"a {type(cache).__name__} stores one token a step; a block of {width} was given")
