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


def touched_pages(width: int, page_size: int) -> int:
    """Return how many pages a span of ``width`` slots may touch, wherever it begins."""
    return (width - 2) // page_size + 2 if width > 1 else 1


def rebuild_page_minmax(
    bounds: PageBounds, k: Tensor, lengths: Tensor, starts: Tensor, width: int, page_size: int
) -> None:
    """Compute the bounds of every page that a span of slots touches anew, in place.

    Pages without a token are left as they are. Fixed shapes and no look at a value: a CUDA graph can capture it. Moves
    ``B * Hkv * (width + page_size) * D`` elements at most.

    Args:
        bounds: pages to update, ``[B, Hkv, P, D]`` each.
        k: ``[B, Hkv, S, D]``, any float dtype.
        lengths: ``[B]`` int64, tokens that count; what lies past them may hold anything.
        starts: ``[B]`` int64, first slots of the span; below 0 counts as 0.
        width: slots in the span.
        page_size: tokens in a page.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3.
    """
    batch, heads, size, dim = k.shape
    touched = touched_pages(width, page_size)
    pages = (starts.clamp(min=0) // page_size)[:, None] + torch.arange(touched, device=k.device)
    slots = (pages[..., None] * page_size + torch.arange(page_size, device=k.device)).flatten(1)
    keys = k.gather(2, slots.clamp(max=size - 1)[:, None, :, None].expand(-1, heads, -1, dim))
    stored = (slots < lengths[:, None])[:, None, :, None]
    used = (pages * page_size < lengths[:, None])[:, None, :, None]
    index = pages.clamp(max=bounds.minimum.shape[2] - 1)[:, None, :, None].expand(-1, heads, -1, dim)
    shape = (batch, heads, touched, page_size, dim)
    for kept, fill in ((bounds.minimum, float("inf")), (bounds.maximum, float("-inf"))):
        grouped = torch.where(stored, keys, fill).view(shape)
        extreme = grouped.amin(dim=3) if fill > 0 else grouped.amax(dim=3)
        # A page past the last is clamped onto it: in order, so that the last write is of a page in use or of none.
        for place in range(touched):
            at = index[:, :, place : place + 1]
            fresh = torch.where(used[:, :, place : place + 1], extreme[:, :, place : place + 1], kept.gather(2, at))
            kept.scatter_(2, at, fresh)
