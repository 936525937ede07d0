"""Count the entries (tokens or blocks) that a retrieval head hands down."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROUNDING = 1e-9
"""Keeps a share such as 0.1 * 10 from falling below a whole number by rounding."""


def kept_always_by_row(widths: Tensor, first: int, last: int, at_least: int) -> tuple[Tensor, Tensor]:
    """``kept_always`` for lists of different widths, ``[B]`` int64 each."""
    room = (widths // 2).clamp(min=at_least)
    share = torch.floor(room.to(torch.float64) * first / max(1, first + last) + 0.5).to(torch.int64)
    shrunk = torch.minimum(share, room - at_least)
    fits = room >= first + last
    return torch.where(fits, first, shrunk), torch.where(fits, last, room - shrunk)


def share_of(entries: int, ratio: float, cap: int) -> int:
    """Entries that the ratio rule keeps of a row: all where they fit ``cap``, else ``(1 - ratio)`` of them, 1 to it."""
    return entries if entries <= cap else min(cap, max(1, math.floor((1 - ratio) * entries + _ROUNDING)))


def shares_of(entries: Tensor, ratio: float, cap: int) -> Tensor:
    """``share_of`` for rows ``[B]`` int64."""
    share = torch.floor(entries.to(torch.float64) * (1 - ratio) + _ROUNDING).to(torch.int64)
    return torch.where(entries <= cap, entries, share.clamp(min=1, max=cap))
