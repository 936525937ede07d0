"""A cache in host memory, of which the device holds some blocks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import CacheShape, StepSlots, WholeCache, empty_pair, store_heads
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.block_residency import Arrivals, BlockQueue, Residents, claim_slots, values_in_slots
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.host_fetch import KeysValues, copy_blocks
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.resident_attention import resident_attention
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention
from longdecode.methods.ring_cache import refuse_blocks

_LISTED, _AHEAD = 0, 1
"""Kinds of fetches of a layer: blocks that it lists, and blocks that it probably will."""


class OffloadedCache(WholeCache):
    """Every token in pinned host memory, and ``slots`` blocks a layer, row and KV head on the device.

    Host: keys and values ``[L, B, Hkv, blocks * block_size, D]`` each, in one buffer. Device: ``k`` and ``v``
    ``[L, B, Hkv, slots * block_size, D]``. The last slot of a list holds the tail, the block of its newest token, which
    goes to the host once the next block begins. So every other slot is full, and one length a row bounds what
    attention reads. A step finds the listed blocks that no slot holds (``claim_slots``) and fetches them before
    it attends (``copy_blocks``): fixed shapes, nothing on the host. ``prefetch`` does so earlier, on a second stream,
    for blocks that a layer will probably list; what it guessed wrongly costs time alone. With ``overlap`` attention
    begins while the fetch runs, and each of its programs waits for its own blocks (``resident_attention``).

    Layers that read everything (``dense_layers``) lie whole on the device. What a block holds on the host is the
    truth once it is full: which blocks are on the device changes no result, and ``undo`` leaves it as it is.

    Source: the layout of NOSI (thunlp/NOSA, arXiv 2510.13602); blocks that lie in one piece, spare slots, prefetch,
    and tails that are still attended to when they fill up are this project's.
    """

    def __init__(
        self,
        shape: CacheShape,
        block_size: int,
        slots: int,
        dense_layers: Collection[int] = (),
        overlap: bool = False,
    ):
        super().__init__(shape)
        config, device = shape.config, shape.device
        self.block_size, self.slots, self.overlap = block_size, slots, overlap
        self.blocks = -(-shape.capacity // block_size)
        layers = range(config.num_layers)
        self.at = {layer: at for at, layer in enumerate(layer for layer in layers if layer not in dense_layers)}
        self.whole_at = {layer: at for at, layer in enumerate(layer for layer in layers if layer in dense_layers)}
        lists = (shape.batch, config.num_kv_heads)
        self.host_shape = (len(self.at), *lists, self.blocks * block_size, config.head_dim)
        self.buffer = HostBuffer(2 * torch.Size(self.host_shape).numel() * shape.dtype.itemsize, device)
        self.k, self.v = empty_pair((len(self.at), *lists, slots * block_size, config.head_dim), shape)
        for tensor in (self.k, self.v):
            # Where a list is short, plain torch gathers from slot 0 what it then weighs with zero.
            tensor.zero_()
        whole = (len(self.whole_at), *lists, shape.capacity, config.head_dim)
        self.whole_k, self.whole_v = empty_pair(whole, shape)
        self.held = torch.full((len(self.at), *lists, slots), -1, device=device, dtype=torch.int64)
        self.used = torch.full_like(self.held, -1)
        self.clock = torch.zeros(1, device=device, dtype=torch.int64)
        self.fetched, self.prefetched = torch.zeros(2, len(self.at), shape.batch, device=device, dtype=torch.int64)
        room = self.held[0].numel() + 1
        # Blocks that a layer lists, and those that the next layers probably will: two copies may be under way.
        self.queues = torch.zeros(3, 2, room, device=device, dtype=torch.int64)
        self.flushed = torch.zeros(2, len(self.at) * lists[0] * lists[1] + 1, device=device, dtype=torch.int64)
        self.entries = torch.zeros(room if overlap else 0, device=device, dtype=torch.int64)
        self.counts = torch.zeros(len(self.at), 2, 1, device=device, dtype=torch.int64)
        self.lane = SideLane(device)

    @property
    def lengths(self) -> Tensor:  # type: ignore[override]
        """Tokens of each row, ``[B]`` int64."""
        return self.positions

    @property
    def host(self) -> KeysValues:
        """Keys and values in host memory, ``[L, B, Hkv, blocks * block_size, D]`` each."""
        dtype = self.shape.dtype
        half = self.buffer.bytes.numel() // 2
        return self.buffer.view(dtype, self.host_shape), self.buffer.view(dtype, self.host_shape, half)

    def row_state(self) -> dict[str, Any]:
        """See ``KVCache.row_state``; queues are a step's own, and a clock that runs on is as good as another."""
        others = ("buffer", "host_shape", "clock", "queues", "flushed", "entries", "counts", "lane")
        return {name: part for name, part in super().row_state().items() if name not in others} | {"host": self.host}

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        yield from (self.k, self.v, self.whole_k, self.whole_v)

    def host_tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.host_tensors``."""
        yield from self.host

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``; a tail that is full goes to the host before another takes its slot."""
        refuse_blocks(self, width, starts)
        self.whole_slots = self.positions.clamp(max=self.capacity - 1)
        tail, inside = self.whole_slots // self.block_size, self.whole_slots % self.block_size
        self._flush(active & (inside == 0) & (tail > 0), tail - 1)
        # After an undo, a block that was full may be the tail again; its copy in another slot is out of date.
        self.held.masked_fill_(self.held == tail[None, :, None, None], -1)
        self.held[..., -1] = tail[None, :, None]
        self.clock += 1
        self.counts.zero_()
        self.kv_lengths = self.whole_slots + 1
        self.slot_mapping = (self.slots - 1) * self.block_size + inside
        self.slot_lengths = self.slot_mapping + 1

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``."""
        if layer in self.whole_at:
            return store_heads(heads, *self._whole(layer), self.whole_slots, bounds, page_size)
        if bounds is not None:
            raise UnsupportedCellError("page bounds follow the slots of a cache; slots in host memory are no positions")
        return store_heads(heads, *self._near(layer), self.slot_mapping)

    def newest_keys(self, layer: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.newest_keys``."""
        whole = layer in self.whole_at
        return (self._whole(layer)[0], self.whole_slots) if whole else (self._near(layer)[0], self.slot_mapping)

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``; for layers that lie whole on the device.

        Raises:
            UnsupportedCellError: the layer lies in host memory.
        """
        if layer not in self.whole_at:
            raise UnsupportedCellError(f"layer {layer} lies in host memory; only listed blocks of it can be read")
        return decode_attention(q, *self._whole(layer), self.kv_lengths, mask=mask, kv_tokens_read=kv_tokens_read)[0]

    def attend_listed(
        self, layer: int, q: Tensor, indices: Tensor, counts: Tensor, *, block_size: int, kv_tokens_read: Tensor,
        uneven: bool = False, bias: Tensor | None = None, **scoring: Any,
    ) -> Tensor:  # fmt: skip
        """See ``WholeCache.attend_listed``; fetches the listed blocks that are not on the device.

        Raises:
            UnsupportedCellError: blocks of another size, lists of query heads, or scores of everything are asked for.
        """
        if layer in self.whole_at:
            return sparse_decode_attention(
                q, *self._whole(layer), indices, counts, block_size=block_size, kv_lengths=self.kv_lengths,
                uneven=uneven, kv_tokens_read=kv_tokens_read, bias=bias, **scoring,
            )[0]  # fmt: skip
        self._refuse(indices, block_size, scoring)
        self.lane.join((layer, _AHEAD))
        queue = self._queue(layer, _LISTED)
        arrivals = None
        if self.overlap:
            arrivals = Arrivals(torch.empty(indices.shape, dtype=torch.int32, device=self.device), self.entries)
        slots = claim_slots(indices, counts, self._residents(layer, self.fetched), queue, self.blocks, arrivals)
        if bias is not None and arrivals is None:
            bias = values_in_slots(bias, self.held[self.at[layer]], self.block_size)
        copy_blocks(*self.layer_blocks(layer), queue, arrivals)
        given: dict[str, Any] = {
            "block_size": block_size, "kv_lengths": self.slot_lengths, "kv_tokens_read": kv_tokens_read, "bias": bias,
        }  # fmt: skip
        if arrivals is None:
            return sparse_decode_attention(q, *self._near(layer), slots, counts, uneven=uneven, **given)[0]
        return resident_attention(
            q, *self._near(layer), slots, counts, bias_blocks=indices, arrivals=arrivals, **given
        )[0]  # fmt: skip

    def prefetch(self, layer: int, indices: Tensor, counts: Tensor) -> None:
        """Fetch blocks that a layer will probably list, beside what the device does next.

        Args:
            indices: ``[B, Hkv, N]`` int64, at most as many as there are slots; entries that name no full block of the
                row are ignored.
            counts: ``[B, Hkv]`` int64.
        """
        if layer in self.whole_at:
            return
        self._refuse(indices, self.block_size, {})
        queue = self._queue(layer, _AHEAD)
        claim_slots(indices, counts, self._residents(layer, self.prefetched), queue, self.blocks)
        with self.lane.beside((layer, _AHEAD)):
            copy_blocks(*self.layer_blocks(layer), queue)

    def forget(self) -> None:
        """Count no block but the tails as being on the device."""
        self.held.fill_(-1)
        self.used.fill_(-1)

    def layer_blocks(self, layer: int) -> tuple[KeysValues, KeysValues]:
        """Return keys and values of a layer by block ``[N, block_size * D]``: in host memory, and in the slots."""
        far = self.host
        return self._in_blocks((far[0][self.at[layer]], far[1][self.at[layer]])), self._in_blocks(self._near(layer))

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``."""
        tokens = min(keys.shape[2], self.capacity)
        if layer in self.whole_at:
            for dense, stored in zip((keys, values), self._whole(layer), strict=True):
                stored[:, :, :tokens] = dense[:, :, :tokens]
            return
        at, size = self.at[layer], self.block_size
        start = (lengths - 1).clamp(min=0) // size * size
        places = (start[:, None] + torch.arange(size, device=self.device)).clamp(max=keys.shape[2] - 1)
        index = places[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3])
        for dense, host, near in zip((keys, values), self.host, (self.k, self.v), strict=True):
            for row in range(self.batch):
                for head in range(keys.shape[1]):
                    # Each in one piece on both sides, so that it is one copy of the driver's.
                    host[at, row, head, :tokens].copy_(dense[row, head, :tokens], non_blocking=True)
            near[at, :, :, -size:] = dense.gather(2, index)

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``; no block but the tail counts as being on the device."""
        self.positions.copy_(tokens)
        self.forget()

    def keys(self, layer: int) -> Tensor:
        """See ``WholeCache.keys``; of a layer in host memory a copy."""
        return self._logical(layer, 0)

    def values(self, layer: int) -> Tensor:
        """See ``WholeCache.values``; of a layer in host memory a copy."""
        return self._logical(layer, 1)

    def step_slots(self) -> Iterator[StepSlots]:
        """See ``KVCache.step_slots``; a token that was refused leaves the tail as it was before."""
        layers, batch, heads = self.k.shape[:3]
        rows = torch.arange(batch, device=self.device)[None, :, None].expand(layers, batch, heads).reshape(-1)
        newest = self.positions.clamp(max=self.capacity - 1) % self.block_size
        slots = ((self.slots - 1) * self.block_size + newest)[rows]
        for tensor in (self.k, self.v):
            yield StepSlots(tensor.flatten(0, 2), slots, rows)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``; in order of positions."""
        stored = int(self.positions[row])
        return self.keys(layer)[row, head, :stored], self.values(layer)[row, head, :stored]

    def _flush(self, due: Tensor, block: Tensor) -> None:
        """Copy the tails of the rows that are ``due`` ``[B]`` to ``block`` ``[B]`` in host memory."""
        place = torch.where(due, due.long().cumsum(dim=0) - 1, self.batch)
        every = torch.arange(self.batch, device=self.device)
        rows = torch.zeros(self.batch + 1, device=self.device, dtype=torch.int64).scatter_(0, place, every)[:-1]
        layers, _, heads, _ = self.held.shape
        lists = torch.arange(layers, device=self.device)[:, None] * self.batch * heads
        lists = lists + torch.arange(heads, device=self.device) + (rows * heads)[:, None, None]
        self.flushed[0, :-1] = (lists * self.slots + self.slots - 1).flatten()
        self.flushed[1, :-1] = (lists * self.blocks + block.clamp(min=0)[rows][:, None, None]).flatten()
        queue = BlockQueue(self.flushed[0], self.flushed[1], due.sum(dim=0, keepdim=True) * (layers * heads))
        near, far = ((k.flatten(0, 2), v.flatten(0, 2)) for k, v in ((self.k, self.v), self.host))
        copy_blocks(self._in_blocks(near), self._in_blocks(far), queue)

    def _refuse(self, indices: Tensor, block_size: int, scoring: dict[str, Any]) -> None:
        if block_size != self.block_size or indices.shape[1] != self.config.num_kv_heads or any(
            value is not None for name, value in scoring.items() if name != "score_block"
        ):  # fmt: skip
            raise UnsupportedCellError(
                f"a cache in host memory reads lists of {self.config.num_kv_heads} KV heads in blocks of "
                f"{self.block_size} tokens; {indices.shape[1]} lists of blocks of {block_size} were asked for, "
                f"with {', '.join(scoring) or 'no scores'}"
            )

    def _queue(self, layer: int, kind: int) -> BlockQueue:
        sources, targets = self.queues[1 + layer % 2 if kind == _AHEAD else 0]
        return BlockQueue(sources, targets, self.counts[self.at[layer], kind])

    def _residents(self, layer: int, fetched: Tensor) -> Residents:
        at = self.at[layer]
        return Residents(self.held[at], self.used[at], self.clock, fetched[at], self.k)

    def _near(self, layer: int) -> KeysValues:
        return self.k[self.at[layer]], self.v[self.at[layer]]

    def _whole(self, layer: int) -> KeysValues:
        return self.whole_k[self.whole_at[layer]], self.whole_v[self.whole_at[layer]]

    def _in_blocks(self, pair: KeysValues) -> KeysValues:
        width = self.block_size * self.config.head_dim
        return pair[0].reshape(-1, width), pair[1].reshape(-1, width)

    def _logical(self, layer: int, which: int) -> Tensor:
        """Return keys (0) or values (1) of a layer by position, ``[B, Hkv, S, D]`` on the device, the tail included."""
        if layer in self.whole_at:
            return self._whole(layer)[which]
        far, near = self.host[which][self.at[layer]], self._near(layer)[which]
        found = torch.empty(far.shape, dtype=far.dtype, device=self.device).copy_(far, non_blocking=True)
        size = self.block_size
        start = (self.positions - 1).clamp(min=0) // size * size
        places = start[:, None] + torch.arange(size, device=self.device)
        index = places[:, None, :, None].expand(-1, far.shape[1], -1, far.shape[3])
        return found.scatter_(2, index, near[:, :, -size:])[:, :, : self.capacity]


class SideLane:
    """A second stream beside the current one, to be joined by key; on a CPU its work runs in its place."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pending: set[Hashable] = set()
        self.events: dict[Hashable, torch.cuda.Event] = {}
        # Its few programs go before the many of the current stream.
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def __deepcopy__(self, memo: dict[int, Any]) -> SideLane:
        """Return a lane of its own; nothing is under way between two steps."""
        return SideLane(self.device)

    @contextmanager
    def beside(self, key: Hashable) -> Iterator[None]:
        """Run what is launched inside after what the current stream has so far, and beside what it does next."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield
            self.events.setdefault(key, torch.cuda.Event()).record(self.stream)
        self.pending.add(key)

    def join(self, key: Hashable) -> None:
        """Make the current stream wait for the lane's work of ``key``, if there is any."""
        if key in self.pending:
            torch.cuda.current_stream(self.device).wait_event(self.events[key])
            self.pending.remove(key)
