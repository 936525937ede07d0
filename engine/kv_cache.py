"""The static KV cache: one tensor for keys, one for values, lengths and positions on the device."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from longdecode.engine.errors import DeviceMemoryError
from longdecode.engine.model_config import ModelConfig


class KVCache:
    """Keys and values of a ragged batch, right-padded to a fixed capacity.

    ``k`` and ``v`` are ``[L, B, Hkv, S, D]``. ``lengths[b]`` counts the tokens stored for row ``b`` and
    ``positions[b]`` is the absolute position of its next token: two counters, because an evicting method stores fewer
    tokens than it has seen. Slots at or past ``lengths[b]`` hold anything and are never read. ``evicts`` says that a
    cache drops tokens, so that slots are no positions.
    """

    evicts: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, batch: int, capacity: int, *, device: torch.device, dtype: torch.dtype):
        shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim)
        refuse_if_too_large(shape, device, dtype)
        self.config = config
        self.k = torch.empty(shape, device=device, dtype=dtype)
        self.v = torch.empty(shape, device=device, dtype=dtype)
        self.lengths = torch.zeros(batch, device=device, dtype=torch.int64)
        self.positions = torch.zeros(batch, device=device, dtype=torch.int64)

    @property
    def batch(self) -> int:
        """Rows in the batch."""
        return self.k.shape[1]

    @property
    def capacity(self) -> int:
        """Token slots per row."""
        return self.k.shape[3]

    @property
    def device(self) -> torch.device:
        """Where the cache lives."""
        return self.k.device

    def keys(self, layer: int) -> Tensor:
        """Keys of one layer, ``[B, Hkv, S, D]``."""
        return self.k[layer]

    def values(self, layer: int) -> Tensor:
        """Values of one layer, ``[B, Hkv, S, D]``."""
        return self.v[layer]

    def write(self, layer: int, start: int, k: Tensor, v: Tensor, rows: slice = slice(None)) -> None:
        """Store a prefill chunk ``[R, Hkv, T, D]`` of ``rows`` in slots ``start ..``; the caller sets lengths."""
        stop = start + k.shape[2]
        self.k[layer, rows, :, start:stop] = k
        self.v[layer, rows, :, start:stop] = v

    def rewrite(self, layer: int, slots: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None:
        """Store keys and values ``[B, Hkv, T, D]`` over those in ``slots`` ``[B, T]``, where ``rows`` ``[B]`` holds."""
        index = slots[:, None, :, None].expand_as(k)
        for stored, new in ((self.k[layer], k), (self.v[layer], v)):
            stored.scatter_(2, index, torch.where(rows[:, None, None, None], new, stored.gather(2, index)))

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """What one KV head of one row stores: keys and values ``[n, D]``, in order of slots. Looks at a length."""
        stored = int(self.lengths[row])
        return self.k[layer, row, head, :stored], self.v[layer, row, head, :stored]

    def slot_mapping(self) -> Tensor:
        """Where each row's current token is stored, ``[B]`` int64; a full row writes over its last slot."""
        return self.lengths.clamp(max=self.capacity - 1)

    def kv_lengths(self) -> Tensor:
        """Tokens a decode query may read, the one just appended included, ``[B]``."""
        return self.lengths + 1

    def advance(self, active: Tensor) -> None:
        """Count one more token for the rows where ``active`` (``[B]`` bool) holds; a finished row stands still."""
        step = active.to(self.lengths.dtype)
        self.lengths += step
        self.positions += step

    def clone(self) -> KVCache:
        """A copy that shares nothing, so that one prefill serves many methods."""
        other = object.__new__(type(self))
        other.config = self.config
        refuse_if_too_large(tuple(self.k.shape), self.device, self.k.dtype)
        for name in ("k", "v", "lengths", "positions"):
            setattr(other, name, getattr(self, name).clone())
        return other

    def nbytes(self) -> int:
        """Bytes held by keys and values."""
        return 2 * self.k.numel() * self.k.element_size()


def refuse_if_too_large(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
    """Raise before a CUDA allocation of keys and values that cannot succeed, so that the cell becomes a status.

    Raises:
        DeviceMemoryError: two tensors of this shape do not fit what is free.
    """
    if device.type != "cuda":
        return
    need = 2 * torch.Size(shape).numel() * dtype.itemsize
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + reserved
    if need > free:
        raise DeviceMemoryError(f"a KV cache of shape {shape} needs {need:,} bytes; {free:,} are free on {device}")
