"""Mean-pooled keys of overlapping windows, in plain torch: built from a prompt, then appended to token by token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator


class Pooling(NamedTuple):
    """Windows of ``window`` tokens that begin every ``stride`` tokens; ``stride`` divides ``window``."""

    window: int
    stride: int

    @property
    def overlap(self) -> int:
        """Windows that a token belongs to."""
        return self.window // self.stride

    def room(self, capacity: int) -> int:
        """Slots for the windows of ``capacity`` tokens, at least 1."""
        return max(1, (capacity - self.window) // self.stride + 1)

    def complete(self, lengths: Tensor) -> Tensor:
        """Return how many windows lie wholly within the first ``lengths`` tokens."""
        return (torch.div(lengths - self.window, self.stride, rounding_mode="floor") + 1).clamp(min=0)


class PooledKeys(NamedTuple):
    """Mean key of each window, ``means`` ``[B, H, M, D]``, and the latest keys, ``ring`` ``[B, H, window, D]``.

    The key at position ``p`` stands in slot ``p mod window`` of the ring. Means of windows that are not complete may
    hold anything.
    """

    means: Tensor
    ring: Tensor


def pool_means(x: Tensor, pooling: Pooling, room: int) -> Tensor:
    """Return the mean over each window of ``x`` ``[B, H, S, ...]``, ``[B, H, room, ...]`` in the accumulator's dtype.

    Windows that ``S`` tokens do not fill are left unwritten.
    """
    wide, (window, stride) = accumulator(x.dtype), pooling
    out = torch.empty(*x.shape[:2], room, *x.shape[3:], dtype=wide, device=x.device)
    strides = x.shape[2] // stride
    windows = min(room, strides - pooling.overlap + 1)
    if windows > 0:
        sums = x[:, :, : strides * stride].unflatten(2, (strides, stride)).sum(dim=3, dtype=wide)
        total = sum(sums[:, :, first : first + windows] for first in range(pooling.overlap))
        out[:, :, :windows] = total / window
    return out


def build_pooled_keys(k: Tensor, lengths: Tensor, pooling: Pooling, capacity: int) -> PooledKeys:
    """Return the pooled keys of a prompt, ``Kbar_m = mean(k_j, j = stride m .. stride m + window - 1)``.

    Moves ``B * H * S * D`` elements in. Source: NOSA (arXiv 2510.13602) and its released code (thunlp/NOSA 94d5f75):
    mean pooling by 32 keys every 16; the rotated keys are pooled.

    Args:
        k: ``[B, H, S, D]``, slots in order of position.
        lengths: ``[B]`` int64, tokens stored; later slots may hold anything.
        pooling: size and stride of the windows.
        capacity: tokens that a row may reach.
    """
    means = pool_means(k, pooling, pooling.room(capacity)).to(k.dtype)
    places = torch.arange(pooling.window, device=k.device)
    # The latest position before the length that stands in each slot of the ring; negative where none does yet.
    newest = lengths[:, None] - 1
    latest = (newest - (newest - places).remainder(pooling.window)).clamp(0, k.shape[2] - 1)
    index = latest[:, None, :, None].expand(*k.shape[:2], pooling.window, k.shape[3])
    return PooledKeys(means, k.gather(2, index))


def append_pooled_key(pooled: PooledKeys, k: Tensor, slots: Tensor, lengths: Tensor, pooling: Pooling) -> None:
    """Take over the newest key of each row, and write the mean of the window that it completes, if any, in place.

    Moves ``2 * B * H * D`` elements, and ``window`` times as many in one step of ``stride``.

    Args:
        pooled: as ``build_pooled_keys`` returned it.
        k: ``[B, H, S, D]``, storage that holds the newest keys.
        slots: ``[B]`` int64, where in it.
        lengths: ``[B]`` int64, tokens of each row, the newest included.
        pooling: size and stride of the windows.
    """
    (means, ring), (window, stride) = pooled, pooling
    shape = (*ring.shape[:2], 1, ring.shape[3])
    newest = k.gather(2, slots.view(-1, 1, 1, 1).expand(shape))
    ring.scatter_(2, (lengths - 1).remainder(window).view(-1, 1, 1, 1).expand(shape), newest)
    since = lengths - window
    place = torch.div(since, stride, rounding_mode="floor")
    due = (since >= 0) & (since.remainder(stride) == 0) & (place < means.shape[2])
    index = place.clamp(0, means.shape[2] - 1).view(-1, 1, 1, 1).expand(shape)
    mean = ring.mean(dim=2, keepdim=True, dtype=accumulator(ring.dtype)).to(means.dtype)
    means.scatter_(2, index, torch.where(due.view(-1, 1, 1, 1), mean, means.gather(2, index)))
