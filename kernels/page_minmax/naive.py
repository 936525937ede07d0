"""Page bounds in plain torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.layout import before


class PageBounds(NamedTuple):
    """Smallest and largest key of each page and channel, both ``[B, Hkv, P, D]`` in the keys' dtype."""

    minimum: Tensor
    maximum: Tensor


def build_page_minmax(k: Tensor, lengths: Tensor, page_size: int) -> PageBounds:
    """Bounds of every page of a cache: ``m_j = min_{i in page j} k_i`` and ``M_j`` likewise.

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
    padded = pad(k, (0, 0, 0, spare)) if spare else k
    shape = (batch, heads, pages, page_size, dim)
    minimum = torch.where(stored, padded, float("inf")).view(shape).amin(dim=3)
    maximum = torch.where(stored, padded, float("-inf")).view(shape).amax(dim=3)
    used = before(-(-lengths // page_size), pages)[:, None, :, None]
    return PageBounds(torch.where(used, minimum, 0.0), torch.where(used, maximum, 0.0))


def update_page_minmax(bounds: PageBounds, k: Tensor, slots: Tensor, page_size: int) -> None:
    """Widen the bounds of the page each row's new key falls in, in place; a page's first key replaces what stood there.

    Moves ``5 * B * Hkv * D`` elements.

    Args:
        bounds: pages to update.
        k: ``[B, Hkv, 1, D]``, the appended keys.
        slots: ``[B]`` int64, the cache slot of each row's key; slots past the last page are taken as its last slot.
        page_size: tokens in a page.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3.
    """
    last = bounds.minimum.shape[2] * page_size - 1
    slots = slots.clamp(max=last)
    page = (slots // page_size)[:, None, None, None].expand_as(k)
    fresh = (slots % page_size == 0)[:, None, None, None]
    for stored, extreme in ((bounds.minimum, torch.minimum), (bounds.maximum, torch.maximum)):
        widened = extreme(stored.gather(2, page), k)
        stored.scatter_(2, page, torch.where(fresh, k, widened))
