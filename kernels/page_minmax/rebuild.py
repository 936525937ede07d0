"""Page bounds of a cache whose latest keys were written over."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.page_minmax.naive import PageBounds


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
