"""A block of tokens: what one forward pass feeds, and what a cache reads from and writes to slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """``T`` new tokens for each of ``B`` sequences.

    Args:
        tokens: ``[B, T]`` int64.
        positions: ``[B or 1, T]`` int64, absolute; they set the rotation. In a tree, siblings share a position.
        mask: ``[T, T]`` bool; row ``t`` sees block token ``u`` where it is true. ``None`` is causal.
        starts: ``[B]`` int64, the slot of each row's first token; ``None`` appends. Earlier slots are written over.
        reads: ``method`` lets the attention method choose what is read, ``dense`` reads everything.
        repeats: leading tokens that were fed before and run again; they add nothing to a row's length.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor | None = None
    starts: Tensor | None = None
    reads: Literal["method", "dense"] = "method"
    repeats: int = 0

    @property
    def width(self) -> int:
        """Tokens per sequence, ``T``."""
        return self.tokens.shape[1]


Stream = tuple[Tensor, Tensor | None]
"""Residual ``[B, T, H]`` and the last projection, not yet added to it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a block that one layer works on at a time."""

    rows: slice
    columns: slice


WHOLE = Piece(slice(None), slice(None))


@dataclass(frozen=True, slots=True)
class BlockHeads:
    """One layer's heads of a block as the projection leaves them: not yet normed, rotated or stored.

    ``q`` is ``[B, Hq, T, D]``, ``k`` and ``v`` are ``[B, Hkv, T, D]``, ``cos`` and ``sin`` ``[B or 1, T, D]``. The norm
    weights ``[D]`` are set for models that normalise queries and keys head by head. ``hidden`` ``[B, T, H]`` is what
    was projected.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    eps: float = 0.0
    hidden: Tensor | None = None


def read_tokens(stored: Tensor, slots: Tensor) -> Tensor:
    """Return the tokens in ``slots`` ``[B, W]`` of ``stored`` ``[L, B, Hkv, S, D]``: a copy ``[L, B, Hkv, W, D]``."""
    index = slots[None, :, None, :, None].expand(*stored.shape[:3], slots.shape[1], stored.shape[4])
    return stored.gather(3, index)


def write_tokens(stored: Tensor, slots: Tensor, new: Tensor, taken: Tensor) -> None:
    """Write the tokens of ``new`` ``[..., W, D]`` where ``taken`` ``[..., W]`` to ``slots`` ``[..., W]`` of ``stored``.

    The slots of a list are distinct; those of tokens that are not taken keep what they hold.
    """
    axis = stored.dim() - 2
    index = slots[..., None].expand(new.shape)
    stored.scatter_(axis, index, torch.where(taken[..., None], new, stored.gather(axis, index)))
