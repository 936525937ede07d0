"""KV caches: the protocol that every kind follows, and the dense one."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from longdecode.engine.device import refuse_if_too_large
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import BlockHeads, read_tokens, write_tokens
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.rope import rope_append
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sequences that a cache must hold: ``batch`` rows of up to ``capacity`` tokens, ``decoded`` of them decoded."""

    config: ModelConfig
    batch: int
    capacity: int
    device: torch.device
    dtype: torch.dtype
    decoded: int


@dataclass(frozen=True, slots=True)
class StepSlots:
    """Slots that a step writes: the ``slots`` ``[N]`` of ``tensor`` ``[N, S, D]``, of the batch ``rows`` ``[N]``."""

    tensor: Tensor
    slots: Tensor
    rows: Tensor

    @property
    def index(self) -> Tensor:
        """The slots as an index of the tensor, ``[N, 1, D]``."""
        return self.slots[:, None, None].expand(-1, 1, self.tensor.shape[2])


@dataclass(frozen=True, slots=True)
class Undo:
    """The state of a cache before a step: what the step writes over, and the counters."""

    written: list[tuple[StepSlots, Tensor]]
    counters: list[tuple[Tensor, Tensor, int]]


class KVCache(ABC):
    """Keys and values of a ragged batch.

    ``positions`` ``[B]`` int64 is the absolute position of each row's next token. It is a counter of its own: a slot
    index is not a position once tokens are dropped. Slots that hold no token may hold anything and are never read.
    """

    def __init__(self, shape: CacheShape):
        self.shape = shape
        self.positions = torch.zeros(shape.batch, device=shape.device, dtype=torch.int64)

    @property
    def config(self) -> ModelConfig:
        """The model the cache belongs to."""
        return self.shape.config

    @property
    def batch(self) -> int:
        """Rows in the batch."""
        return self.shape.batch

    @property
    def device(self) -> torch.device:
        """Device of the lengths and of all that a step reads."""
        return self.shape.device

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of keys or values."""

    def counters(self) -> Iterator[tuple[Tensor, int]]:
        """Yield every tensor that a step changes beside keys and values, with its batch axis; by default positions."""
        yield (self.positions, 0)

    @abstractmethod
    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """Work out once where a block is stored and how much its rows read.

        Args:
            width: tokens per row.
            starts: ``[B]`` int64, first slots; ``None`` appends.
            active: ``[B]`` bool; a rewrite leaves other rows as they are.
        """

    @abstractmethod
    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """Rotate a block's heads and store its keys and values.

        Args:
            bounds: page bounds to widen by the new keys.
            page_size: tokens in a page of ``bounds``.

        Returns:
            The rotated queries, ``[B, Hq, T, D]``.
        """

    @abstractmethod
    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """Attend to all that is stored of a layer.

        Args:
            q: ``[B, Hq, T, D]``, rotated, its block stored.
            mask: ``[T, T]`` bool over the block; ``None`` is causal.
            kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over KV heads, are added.

        Returns:
            ``[B, Hq, T, D]``.
        """

    def newest_keys(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return storage ``[B, Hkv, S, D]`` of a layer, and the slot ``[B]`` of each row's newest key in it.

        Raises:
            UnsupportedCellError: the newest keys of a row stand in slots that differ by KV head.
        """
        raise UnsupportedCellError(f"a {type(self).__name__} does not say where the newest keys stand")

    @abstractmethod
    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """Take over what the cache keeps of one densely prefilled layer.

        Args:
            keys: ``[B, Hkv, S, D]``, the slot of a token is its position.
            values: ``[B, Hkv, S, D]``.
            lengths: ``[B]`` int64, tokens of each row.
        """

    @abstractmethod
    def stand_at(self, tokens: Tensor) -> None:
        """Set the counters as after a prefill of ``tokens`` (``[B]`` int64) each."""

    @abstractmethod
    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """Return what one KV head of one row stores: keys and values ``[n, D]``. Waits for the device."""

    def step_slots(self) -> Iterator[StepSlots]:
        """Yield the slots with keys and values that the next step of one token overwrites.

        None by default: a rejected token is forgotten by its position or length alone.
        """
        yield from ()

    def advance(self, counts: Tensor) -> None:
        """Count ``counts`` (``[B]`` int64) more tokens in each row."""
        self.positions += counts

    def takes_over(self, width: int) -> bool:
        """Return true where ``take_over`` can store up to ``width`` verified tokens; the default is no."""
        return False

    def take_over(self, k: Tensor, v: Tensor, starts: Tensor, kept: Tensor) -> None:
        """Store the first ``kept`` (``[B]``) verified tokens from position ``starts`` (``[B]``) on; stand after them.


        Args:
            k: rotated keys ``[L, B, Hkv, W, D]`` of the positions ``starts ..``.
            v: values, likewise.
        """
        raise NotImplementedError(f"a {type(self).__name__} takes no verified tokens over")

    def clone(self) -> Self:
        """Return a copy that shares no memory."""
        refuse_if_too_large(self.nbytes(), self.device)
        return copy.deepcopy(self, {id(self.shape): self.shape})

    def row_state(self) -> dict[str, Any]:
        """Return by name all that the next step of a row depends on; by default every attribute but the shape."""
        return {name: part for name, part in vars(self).items() if name != "shape"}

    def nbytes(self) -> int:
        """Bytes of keys and values on the device."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def host_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of keys or values in host memory; by default there is none."""
        yield from ()

    def host_nbytes(self) -> int:
        """Bytes of keys and values in host memory."""
        return sum(tensor.nbytes for tensor in self.host_tensors())

    def before_step(self) -> Undo:
        """Save what the next step of one token overwrites, so that ``undo`` can take the step back."""
        written = [(at, at.tensor.gather(1, at.index)) for at in self.step_slots()]
        return Undo(written, [(tensor, tensor.clone(), axis) for tensor, axis in self.counters()])

    def undo(self, saved: Undo, rows: Tensor) -> None:
        """Take a step back for ``rows`` (``[B]`` bool)."""
        for at, old in saved.written:
            index = at.index
            at.tensor.scatter_(1, index, torch.where(rows[at.rows][:, None, None], old, at.tensor.gather(1, index)))
        for tensor, old, axis in saved.counters:
            back = rows.view(-1, *[1] * (tensor.dim() - axis - 1))
            tensor.copy_(torch.where(back, old, tensor))


class WholeCache(KVCache):
    """A cache that keeps every token, wherever it does: block ``n`` of a row is its tokens ``n * block_size ..``.

    ``begin_block`` sets ``kv_lengths`` ``[B]`` int64: the tokens that the block's last row may read, itself included.
    """

    kv_lengths: Tensor
    lengths: Tensor
    """``[B]`` int64, tokens of each row."""

    @property
    def capacity(self) -> int:
        """Tokens a row may have."""
        return self.shape.capacity

    @abstractmethod
    def keys(self, layer: int) -> Tensor:
        """Return the keys of one layer on the device, ``[B, Hkv, S, D]``, the slot of a token being its position."""

    @abstractmethod
    def values(self, layer: int) -> Tensor:
        """Return the values of one layer, likewise."""

    def key_scale(self, layer: int) -> Tensor | None:
        """Return each channel's scale ``[B, Hkv, D]`` where ``keys`` are codes of e4m3; ``None`` where they are not."""
        return None

    @abstractmethod
    def attend_listed(
        self, layer: int, q: Tensor, indices: Tensor, counts: Tensor, *, block_size: int, kv_tokens_read: Tensor,
        uneven: bool = False, **scoring: Any,
    ) -> Tensor:  # fmt: skip
        """Attend to listed blocks of a layer; arguments as in ``sparse_decode_attention``, ``[B, Hq, T, D]``.

        A ``bias`` is given by token, ``[B, Hs, S]``.
        """


class DenseCache(WholeCache):
    """Every token in the slot of its position: ``k`` and ``v`` are ``[L, B, Hkv, S, D]``, ``lengths`` is ``[B]``."""

    def __init__(self, shape: CacheShape):
        super().__init__(shape)
        config = shape.config
        size = (config.num_layers, shape.batch, config.num_kv_heads, shape.capacity, config.head_dim)
        self.k, self.v = empty_pair(size, shape)
        self.lengths = torch.zeros_like(self.positions)

    def keys(self, layer: int) -> Tensor:
        """See ``WholeCache.keys``; not a copy."""
        return self.k[layer]

    def values(self, layer: int) -> Tensor:
        """See ``WholeCache.values``; not a copy."""
        return self.v[layer]

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        yield from (self.k, self.v)

    def counters(self) -> Iterator[tuple[Tensor, int]]:
        """See ``KVCache.counters``."""
        yield from ((self.lengths, 0), (self.positions, 0))

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``; a full row, which is done, writes over its last slot and reads no slot more."""
        rewrite = starts is not None
        starts = self.lengths if starts is None else starts
        self.kv_lengths = (starts + width).clamp(max=self.capacity)
        if width > 1 or rewrite:
            slots = starts[:, None] + torch.arange(width, device=self.device)
            slots = slots.clamp(max=self.capacity - 1)
            self.slot_mapping = torch.where(active[:, None], slots, -1) if rewrite else slots
        else:
            self.slot_mapping = starts.clamp(max=self.capacity - 1)

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``."""
        return store_heads(heads, self.k[layer], self.v[layer], self.slot_mapping, bounds, page_size)

    def newest_keys(self, layer: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.newest_keys``."""
        return self.k[layer], self.slot_mapping

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``."""
        return decode_attention(
            q, self.k[layer], self.v[layer], self.kv_lengths, mask=mask, kv_tokens_read=kv_tokens_read
        )[0]

    def attend_listed(
        self, layer: int, q: Tensor, indices: Tensor, counts: Tensor, *, block_size: int, kv_tokens_read: Tensor,
        uneven: bool = False, **scoring: Any,
    ) -> Tensor:  # fmt: skip
        """See ``WholeCache.attend_listed``."""
        return sparse_decode_attention(
            q, self.k[layer], self.v[layer], indices, counts, block_size=block_size, kv_lengths=self.kv_lengths,
            uneven=uneven, kv_tokens_read=kv_tokens_read, **scoring,
        )[0]  # fmt: skip

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``."""
        tokens = min(keys.shape[2], self.capacity)
        self.k[layer, :, :, :tokens] = keys[:, :, :tokens]
        self.v[layer, :, :, :tokens] = values[:, :, :tokens]

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``."""
        self.lengths.copy_(tokens)
        self.positions.copy_(tokens)

    def advance(self, counts: Tensor) -> None:
        """See ``KVCache.advance``."""
        self.lengths += counts
        self.positions += counts

    def compact(self, starts: Tensor, rows: Tensor) -> None:
        """Move the accepted tokens of a block to consecutive slots.

        Args:
            starts: ``[B]`` int64, the block's first slots.
            rows: ``[B, N]`` int64, the block row that goes to place ``n``, at least ``n``.
        """
        from longdecode.kernels.token_move import compact_tokens  # speculation alone moves tokens

        compact_tokens(self.k, self.v, starts, rows)

    def takes_over(self, width: int) -> bool:
        """See ``KVCache.takes_over``."""
        return True

    def take_over(self, k: Tensor, v: Tensor, starts: Tensor, kept: Tensor) -> None:
        """See ``KVCache.take_over``."""
        place = torch.arange(k.shape[3], device=self.device)
        slots, taken = (starts[:, None] + place).clamp(max=self.capacity - 1), place < kept[:, None]
        slots, taken = (part[None, :, None].expand(k.shape[:4]) for part in (slots, taken))
        for stored, new in ((self.k, k), (self.v, v)):
            write_tokens(stored, slots, new, taken)
        self.stand_at(starts + kept)

    @contextmanager
    def lent(self, width: int = 1) -> Iterator[None]:
        """Let a generation run in this cache, and have the prompt back as it was, without a copy of the cache.

        A generation appends. What it may write over is saved: the last ``width`` tokens of each row (a full row, which
        is done, writes over its last; a rewrite reaches back as far as its width).
        """
        lengths = self.lengths.clone()
        starts = (lengths - width).clamp(min=0)
        saved = self.window(starts, width)
        try:
            yield
        finally:
            self.take_over(*saved, starts, lengths - starts)

    def window(self, starts: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return a copy of what ``width`` slots from ``starts`` (``[B]``) on hold, ``[L, B, Hkv, width, D]``."""
        slots = (starts[:, None] + torch.arange(width, device=self.device)).clamp(max=self.capacity - 1)
        return read_tokens(self.k, slots), read_tokens(self.v, slots)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``; in order of slots."""
        stored = int(self.lengths[row])
        return self.k[layer, row, head, :stored], self.v[layer, row, head, :stored]


def store_heads(
    heads: BlockHeads, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, bounds: PageBounds | None = None,
    page_size: int = 0,
) -> Tensor:  # fmt: skip
    """Rotate a block's heads and store its keys and values in one launch; see ``kernels.rope``."""
    return rope_append(
        heads.q, heads.k, heads.v, heads.cos, heads.sin, k_cache, v_cache, slot_mapping,
        q_norm=heads.q_norm, k_norm=heads.k_norm, eps=heads.eps, bounds=bounds, page_size=page_size,
    )  # fmt: skip


def empty_pair(size: tuple[int, ...], shape: CacheShape) -> tuple[Tensor, Tensor]:
    """Return uninitialised tensors of ``size`` for keys and values.

    Raises:
        DeviceMemoryError: they do not fit what is free.
    """
    refuse_if_too_large(2 * torch.Size(size).numel() * shape.dtype.itemsize, shape.device)
    k = torch.empty(size, device=shape.device, dtype=shape.dtype)
    return k, torch.empty_like(k)
