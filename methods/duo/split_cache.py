"""A cache in which some KV heads keep every token and the others a small ring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from longdecode.engine.kv_cache import CacheShape, KVCache, StepSlots, empty_pair, store_heads
from longdecode.engine.token_block import BlockHeads, write_tokens
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.page_minmax import PageBounds
from longdecode.methods.head_roles import Roles
from longdecode.methods.ring_cache import refuse_blocks, ring_slots, ring_source, take_into_ring


class HeadStore(NamedTuple):
    """Keys and values of KV heads that keep equally many tokens: ``[heads, B, S, D]``, layer after layer.

    ``heads`` are the layers' KV heads, ``spans`` where they lie.
    """

    k: Tensor
    v: Tensor
    heads: list[list[int]]
    spans: list[slice]

    @classmethod
    def empty(cls, heads: list[list[int]], capacity: int, shape: CacheShape) -> HeadStore:
        """Return an uninitialised store."""
        k, v = empty_pair((sum(map(len, heads)), shape.batch, capacity, shape.config.head_dim), shape)
        ends = list(accumulate(map(len, heads)))
        return cls(k, v, heads, [slice(end - len(layer), end) for layer, end in zip(heads, ends, strict=True)])

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer's heads, ``[B, heads, S, D]``, views."""
        span = self.spans[layer]
        return self.k[span].transpose(0, 1), self.v[span].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class HeadRun:
    """Neighbouring KV heads of one role: ``first .. stop`` in the model, from ``at`` on in their store."""

    retrieval: bool
    first: int
    stop: int
    at: int


class SplitCache(KVCache):
    """Retrieval heads keep every token, streaming heads the first ``sinks`` and the latest of ``ring_tokens`` in all.

    Slots of a ring are as in ``RingCache``. Within a store the heads of a layer keep their order; rotated queries are
    ordered by store, outputs by the model. Keys keep the rotation they came with.
    """

    def __init__(self, shape: CacheShape, roles: Roles, ring_tokens: int, sinks: int):
        super().__init__(shape)
        self.ring_tokens, self.sinks = ring_tokens, sinks
        self.runs = [_runs(row) for row in roles]
        retrieval = [[head for head, role in enumerate(row) if role] for row in roles]
        streaming = [[head for head, role in enumerate(row) if not role] for row in roles]
        self.whole = HeadStore.empty(retrieval, shape.capacity, shape)
        self.ring = HeadStore.empty(streaming, ring_tokens, shape)
        self.flat_heads = [
            torch.tensor(
                [n * len(roles[0]) + head for n, row in enumerate(kind) for head in row],
                dtype=torch.int64,
                device=shape.device,
            )
            for kind in (retrieval, streaming)
        ]
        """Heads of both stores among all heads of all layers."""

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        yield from (self.whole.k, self.whole.v, self.ring.k, self.ring.v)

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``."""
        refuse_blocks(self, width, starts)
        self.whole_slots = self.positions.clamp(max=self.shape.capacity - 1)
        self.whole_lengths = self.whole_slots + 1
        self.ring_slots = ring_slots(self.positions, self.ring_tokens, self.sinks)
        self.ring_lengths = self.whole_lengths.clamp(max=self.ring_tokens)

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``; the queries come back retrieval heads first."""
        q, k, v = self._retrieval_first(layer, heads)
        first = len(self.whole.heads[layer])
        # All queries are rotated by the first of the two launches, whether or not it has keys to store.
        whole = replace(heads, q=q, k=k[:, :first], v=v[:, :first])
        rotated = store_heads(whole, *self.whole.of(layer), self.whole_slots)
        if first < self.config.num_kv_heads:
            store_heads(
                replace(heads, q=q[:, :0], k=k[:, first:], v=v[:, first:]), *self.ring.of(layer), self.ring_slots
            )
        return rotated

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``; takes the queries as ``append`` ordered them."""
        group = self.config.group_size
        first = len(self.whole.heads[layer]) * group
        parts: dict[bool, Tensor] = {}
        if first:
            parts[True] = decode_attention(
                q[:, :first], *self.whole.of(layer), self.whole_lengths, kv_tokens_read=kv_tokens_read
            )[0]
        if first < q.shape[1]:
            parts[False] = decode_attention(
                q[:, first:], *self.ring.of(layer), self.ring_lengths, kv_tokens_read=kv_tokens_read
            )[0]
        if len(parts) == 1:
            return next(iter(parts.values()))
        stored = [(parts[run.retrieval], slice(run.at, run.at + run.stop - run.first)) for run in self.runs[layer]]
        return torch.cat([_heads(part, heads, group) for part, heads in stored], dim=1)

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``."""
        source = ring_source(lengths, keys.shape[2], self.ring_tokens, self.sinks)[:, :, None]
        index = source.expand(-1, -1, keys.shape[3])
        tokens = min(keys.shape[2], self.shape.capacity)
        for dense, whole, ring in ((keys, self.whole.k, self.ring.k), (values, self.whole.v, self.ring.v)):
            for slot, head in enumerate(self.whole.heads[layer], self.whole.spans[layer].start):
                whole[slot, :, :tokens] = dense[:, head, :tokens]
            for slot, head in enumerate(self.ring.heads[layer], self.ring.spans[layer].start):
                torch.gather(dense[:, head], 1, index, out=ring[slot])

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``."""
        self.positions.copy_(tokens)

    def step_slots(self) -> Iterator[StepSlots]:
        """See ``KVCache.step_slots``; in whole rows a refused token is forgotten by its position alone."""
        heads = self.ring.k.shape[0]
        rows = torch.arange(self.batch, device=self.device).repeat(heads)
        slots = ring_slots(self.positions, self.ring_tokens, self.sinks)[rows]
        for tensor in (self.ring.k, self.ring.v):
            yield StepSlots(tensor.flatten(0, 1), slots, rows)

    def takes_over(self, width: int) -> bool:
        """See ``KVCache.takes_over``: where a ring holds them all at once."""
        return width <= self.ring_tokens - self.sinks

    def take_over(self, k: Tensor, v: Tensor, starts: Tensor, kept: Tensor) -> None:
        """See ``KVCache.take_over``."""
        place = torch.arange(k.shape[3], device=self.device)
        taken = place < kept[:, None]
        slots = (starts[:, None] + place).clamp(max=self.shape.capacity - 1)
        for new, whole, ring in ((k, self.whole.k, self.ring.k), (v, self.whole.v, self.ring.v)):
            retrieved, streamed = (new.transpose(1, 2).flatten(0, 1)[heads] for heads in self.flat_heads)
            shape = retrieved.shape[:3]
            write_tokens(whole, slots.expand(shape), retrieved, taken.expand(shape))
            take_into_ring(ring[:, :, None], streamed[:, :, None], starts, kept, self.sinks)
        self.positions.copy_(starts + kept)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``; in order of slots."""
        store = self.whole if head in self.whole.heads[layer] else self.ring
        stored = min(int(self.positions[row]), store.k.shape[2])
        keys, values = store.of(layer)
        at = store.heads[layer].index(head)
        return keys[row, at, :stored], values[row, at, :stored]

    def _retrieval_first(self, layer: int, heads: BlockHeads) -> tuple[Tensor, Tensor, Tensor]:
        """The heads in the order of the stores; moved in one copy where that is not the model's order."""
        runs = sorted(self.runs[layer], key=lambda run: not run.retrieval)
        if runs == self.runs[layer]:
            return heads.q, heads.k, heads.v
        group = self.config.group_size
        pieces = [
            _heads(part, slice(run.first, run.stop), size)
            for part, size in ((heads.q, group), (heads.k, 1), (heads.v, 1))
            for run in runs
        ]
        q, k, v = torch.cat(pieces, dim=1).split((heads.q.shape[1], heads.k.shape[1], heads.v.shape[1]), dim=1)
        return q, k, v


def _runs(row: tuple[bool, ...]) -> list[HeadRun]:
    """A layer's heads as runs of one role, in the model's order."""
    runs, first, at = [], 0, {True: 0, False: 0}
    for role, heads in groupby(row):
        count = len(list(heads))
        runs.append(HeadRun(role, first, first + count, at[role]))
        first, at[role] = first + count, at[role] + count
    return runs


def _heads(x: Tensor, kv_heads: slice, group: int) -> Tensor:
    """The heads of ``x`` ``[B, H, 1, D]`` that belong to a span of KV heads, ``group`` of them each."""
    return x[:, kv_heads.start * group : kv_heads.stop * group]
