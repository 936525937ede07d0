"""Rotary embedding, alone and with the append to a cache, in plain torch; split halves, as `transformers` has them."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, on_host
from longdecode.kernels.page_minmax.naive import PageBounds, update_page_minmax
from longdecode.kernels.rms_norm.naive import rms_norm


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair ``(x_i, x_{i + D/2})`` by its angle: ``x cos + (-x_2, x_1) sin``.

    Args:
        x: ``[B, H, T, D]``, any float dtype; products are taken in float32 (float64 for float64).
        cos: ``[B, T, D]``, the ``D / 2`` cosines written twice.
        sin: ``[B, T, D]``, likewise.

    Returns:
        ``[B, H, T, D]`` in ``x``'s dtype.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 34, in the split-half order.
    """
    dtype = accumulator(x.dtype)
    wide, cos, sin = x.to(dtype), cos[:, None].to(dtype), sin[:, None].to(dtype)
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions; see ``rotate``.

    Args:
        q: ``[B, Hq, T, D]``.
        k: ``[B, Hkv, T, D]``.
        cos: ``[B, T, D]``.
        sin: ``[B, T, D]``.

    Returns:
        Both, rotated, in their own dtypes.
    """
    return rotate(q, cos, sin), rotate(k, cos, sin)


def rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    bounds: PageBounds | None = None,
    page_size: int = 0,
) -> Tensor:
    """Rotate the queries and keys of ``T`` tokens by their positions; store keys and values in slots of the cache.

    Each head is normalised first where norms are given (``rms_norm``). Where bounds are, those of the pages that the
    slots fall in are widened by the keys as stored, and a page's first key replaces them (``update_page_minmax``).
    Rounds as the separate ops do. Moves ``2 * B * T * (Hq + 2 * Hkv) * D`` elements, and ``4 * B * T * Hkv * D`` for
    bounds.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype and strides.
        k: ``[B, Hkv, T, D]``, likewise.
        v: ``[B, Hkv, T, D]``, likewise.
        cos: ``[B or 1, T, D]``, the ``D / 2`` cosines written twice.
        sin: likewise.
        k_cache: ``[B, Hkv, S, D]`` in ``k``'s dtype, changed in place.
        v_cache: ``[B, Hkv, S, D]``, likewise.
        slot_mapping: ``[B, T]`` or ``[B, Hkv, T]`` int64, or ``[B]`` for one token; no two tokens of a row and head in
            one slot. A token whose slot is negative, or ``S`` or more, is not stored.
        q_norm: ``[D]``, weight of the queries' norm.
        k_norm: ``[D]``, weight of the keys' norm.
        eps: added to the mean square of both.
        bounds: pages of ``k_cache``, changed in place; the slots of a row and head then ascend by one.
        page_size: tokens in a page of ``bounds``.

    Returns:
        The rotated queries, ``[B, Hq, T, D]`` in their dtype.

    Raises:
        ValueError: bounds without a page size, or slots of another shape.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 34, in the split-half order; Tang et al. 2024, Quest
    (arXiv 2406.10774), section 3.3, for the bounds.
    """
    slots = expand_slots(slot_mapping, k)
    check_bounds(bounds, page_size)
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    q, k = apply_rope(q, k, cos, sin)
    _store(k_cache, k, slots)
    _store(v_cache, v, slots)
    if bounds is not None:
        update_page_minmax(bounds, k, slots, page_size)
    return q


def expand_slots(slot_mapping: Tensor, k: Tensor) -> Tensor:
    """Return the slots as a view ``[B, Hkv, T]`` for keys ``[B, Hkv, T, D]``.

    Raises:
        ValueError: they are none of ``[B]`` (one token), ``[B, T]`` and ``[B, Hkv, T]``.
    """
    batch, heads, tokens, _ = k.shape
    if slot_mapping.shape == (batch,) and tokens == 1:
        slot_mapping = slot_mapping[:, None]
    if slot_mapping.shape == (batch, tokens):
        slot_mapping = slot_mapping[:, None].expand(batch, heads, tokens)
    if slot_mapping.shape != (batch, heads, tokens):
        raise ValueError(
            f"slot_mapping {tuple(slot_mapping.shape)} for keys {tuple(k.shape)}: [{batch}, {tokens}] or "
            f"[{batch}, {heads}, {tokens}] is needed"
        )
    return slot_mapping


def check_bounds(bounds: PageBounds | None, page_size: int) -> None:
    """Refuse page bounds without a page size.

    Raises:
        ValueError: as said.
    """
    if bounds is not None and page_size < 1:
        raise ValueError(f"page bounds need a page size of one token or more, got {page_size}")


def _store(cache: Tensor, new: Tensor, slots: Tensor) -> None:
    """Write tokens ``[B, H, T, D]`` to their slots, without those that have none: fixed shapes, no host wait."""
    if not new.numel():
        return
    inside = (slots >= 0) & (slots < cache.shape[2])
    if not (on_host(slots) and bool(inside.all())):
        # A token without a slot repeats the first one that has one; where none has, slot 0 gets what it holds.
        steps = torch.arange(slots.shape[2], device=slots.device)
        source = torch.where(inside, steps, inside.to(torch.int8).argmax(dim=2, keepdim=True))
        new = new.gather(2, source[..., None].expand_as(new))
        slots, inside = slots.gather(2, source), inside.gather(2, source)
        slots = torch.where(inside, slots, 0)
        old = cache.gather(2, slots[..., None].expand_as(new))
        new = torch.where(inside[..., None], new, old)
    cache.scatter_(2, slots[..., None].expand_as(new), new)
