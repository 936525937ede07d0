"""A cache in which some KV heads keep every token and the others a small ring."""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import KVCache, refuse_if_too_large
from longdecode.methods.head_roles import Roles
from longdecode.methods.ring_cache import ring_slots, ring_source


class Store(NamedTuple):
    """Keys and values of KV heads that keep equally many tokens: ``[heads, B, S, D]``, layer after layer.

    ``heads`` are the layers' KV heads, ``spans`` where they lie.
    """

    k: Tensor
    v: Tensor
    heads: list[list[int]]
    spans: list[slice]

    @classmethod
    def empty(cls, heads: list[list[int]], capacity: int, like: KVCache) -> Store:
        """Uninitialised, on the device and in the dtype of a cache and for its rows."""
        shape = (sum(map(len, heads)), like.batch, capacity, like.config.head_dim)
        refuse_if_too_large(shape, like.device, like.k.dtype)
        k, v = (torch.empty(shape, device=like.device, dtype=like.k.dtype) for _ in range(2))
        ends = list(accumulate(map(len, heads)))
        return cls(k, v, heads, [slice(end - len(layer), end) for layer, end in zip(heads, ends, strict=True)])

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer's heads, ``[B, heads, S, D]``, views."""
        span = self.spans[layer]
        return self.k[span].transpose(0, 1), self.v[span].transpose(0, 1)

    def clone(self) -> Store:
        """A copy that shares no tensor."""
        refuse_if_too_large(tuple(self.k.shape), self.k.device, self.k.dtype)
        return self._replace(k=self.k.clone(), v=self.v.clone())

    def nbytes(self) -> int:
        """Bytes held by keys and values."""
        return 2 * self.k.numel() * self.k.element_size()


class SplitCache(KVCache):
    """Retrieval heads keep every token, streaming heads the first ``sinks`` and the latest of ``ring_tokens`` in all.

    ``lengths`` and ``positions`` are the tokens seen, which is what the whole rows hold; a ring of a row holds up to
    ``ring_tokens`` of them, in slots as in ``RingCache``. Within a store the heads of a layer keep their order. Keys
    keep the rotation they came with. There is no one tensor of all heads: ``whole`` and ``ring`` are asked instead.
    """

    evicts: ClassVar[bool] = True
    whole: Store
    ring: Store
    sinks: int

    @classmethod
    def cut(cls, full: KVCache, roles: Roles, ring_tokens: int, sinks: int) -> SplitCache:
        """Copy the retrieval heads of a whole cache, and of the others what a ring of ``ring_tokens`` keeps."""
        cache = object.__new__(cls)
        cache.config, cache.sinks = full.config, sinks
        retrieval = [[head for head, role in enumerate(row) if role] for row in roles]
        streaming = [[head for head, role in enumerate(row) if not role] for row in roles]
        cache.whole = Store.empty(retrieval, full.capacity, full)
        cache.ring = Store.empty(streaming, ring_tokens, full)
        source = ring_source(full.lengths, full.capacity, ring_tokens, sinks)[:, :, None]
        for layer in range(full.config.num_layers):
            for stored, to_whole, to_ring in (
                (full.k[layer], cache.whole.k, cache.ring.k),
                (full.v[layer], cache.whole.v, cache.ring.v),
            ):
                for slot, head in enumerate(retrieval[layer], cache.whole.spans[layer].start):
                    to_whole[slot].copy_(stored[:, head])
                for slot, head in enumerate(streaming[layer], cache.ring.spans[layer].start):
                    index = source.expand(full.batch, ring_tokens, stored.shape[3])
                    torch.gather(stored[:, head], 1, index, out=to_ring[slot])
        cache.lengths, cache.positions = full.lengths.clone(), full.positions.clone()
        return cache

    @property
    def batch(self) -> int:
        """Rows in the batch."""
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        """Token slots per row of a retrieval head."""
        return self.whole.k.shape[2]

    @property
    def ring_tokens(self) -> int:
        """Token slots per row of a streaming head."""
        return self.ring.k.shape[2]

    @property
    def device(self) -> torch.device:
        """Where the cache lives."""
        return self.lengths.device

    def keys(self, layer: int) -> NoReturn:
        """Refused: see the class."""
        raise UnsupportedCellError(f"heads of layer {layer} keep different tokens; there is no one tensor of all heads")

    values = keys

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """What one KV head of one row stores: keys and values ``[n, D]``, in order of slots. Looks at a length."""
        store = self.whole if head in self.whole.heads[layer] else self.ring
        stored = min(int(self.lengths[row]), store.k.shape[2])
        keys, values = store.of(layer)
        at = store.heads[layer].index(head)
        return keys[row, at, :stored], values[row, at, :stored]

    def ring_slots(self) -> Tensor:
        """Where a streaming head stores each row's current token, ``[B]``: over its oldest, once its ring is full."""
        return ring_slots(self.positions, self.ring_tokens, self.sinks)

    def ring_visible(self) -> Tensor:
        """Tokens a streaming head's query may read, the one just appended included, ``[B]``."""
        return (self.lengths + 1).clamp(max=self.ring_tokens)

    def clone(self) -> SplitCache:
        """A copy that shares nothing."""
        other = object.__new__(SplitCache)
        other.config, other.sinks = self.config, self.sinks
        other.whole, other.ring = self.whole.clone(), self.ring.clone()
        other.lengths, other.positions = self.lengths.clone(), self.positions.clone()
        return other

    def nbytes(self) -> int:
        """Bytes held by keys and values: whole rows and rings."""
        return self.whole.nbytes() + self.ring.nbytes()
