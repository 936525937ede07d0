"""Tokens of a cache read from and written to slots, in fixed shapes."""

from __future__ import annotations

import torch
from torch import Tensor


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
