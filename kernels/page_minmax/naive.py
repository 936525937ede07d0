"""Page bounds in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.layout import before


class PageBounds(NamedTuple):
    """Smallest and largest key of each page and channel, both ``[B, Hkv, P, D]`` in the keys' dtype.

    Of keys in e4m3 they are codes too: a channel's scale is above zero, and leaves them in order.
    """

    minimum: Tensor
    maximum: Tensor


def build_page_minmax(k: Tensor, lengths: Tensor, page_size: int) -> PageBounds:
    """Return the bounds of every page of a cache: ``m_j = min_{i in page j} k_i`` and ``M_j`` likewise.

    Tokens at or past the length never count, whatever they hold. Pages without a token hold zeros. Moves
    ``B * Hkv * S * D`` elements in and ``2 / page_size`` of that out.

    Args:
        k: ``[B, Hkv, S, D]``, any float dtype.
        lengths: ``[B]`` int64.
        page_size: tokens in a page; the last page may be cut short by ``S``.

    Returns:
        Bounds over ``P = ceil(S / page_size)`` pages.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3.
    """
    batch, heads, size, dim = k.shape
    pages = -(-size // page_size)
    spare = pages * page_size - size
    stored = before(lengths, pages * page_size)[:, None, :, None]
    numbers = k.float() if k.dtype.itemsize == 1 else k  # torch orders no codes
    padded = pad(numbers, (0, 0, 0, spare)) if spare else numbers
    shape = (batch, heads, pages, page_size, dim)
    minimum = torch.where(stored, padded, float("inf")).view(shape).amin(dim=3)
    maximum = torch.where(stored, padded, float("-inf")).view(shape).amax(dim=3)
    used = before(-(-lengths // page_size), pages)[:, None, :, None]
    return PageBounds(*(torch.where(used, part, 0.0).to(k.dtype) for part in (minimum, maximum)))


def update_page_minmax(bounds: PageBounds, k: Tensor, slots: Tensor, page_size: int) -> None:
    """Widen, in place, the bounds of the pages that appended keys fall in; a page's first key replaces its bounds.

    Moves ``5 * B * Hkv * T * D`` elements.

    Args:
        bounds: pages to update.
        k: ``[B, Hkv, T, D]``, the appended keys, those of one page in the order of their slots.
        slots: ``[B, Hkv, T]`` int64, the cache slot of each key; a slot outside the pages is skipped.
        page_size: tokens in a page.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3.
    """
    pages = bounds.minimum.shape[2]
    for step in range(k.shape[2]):
        key, slot = k[:, :, step : step + 1], slots[:, :, step, None, None]
        outside = (slot < 0) | (slot >= pages * page_size)
        page = torch.where(outside, 0, slot // page_size).expand_as(key)
        fresh = slot % page_size == 0
        for stored, extreme in ((bounds.minimum, torch.minimum), (bounds.maximum, torch.maximum)):
            old = stored.gather(2, page)
            new = torch.where(fresh, key, extreme(old, key))
            stored.scatter_(2, page, torch.where(outside, old, new))
