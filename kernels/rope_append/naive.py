"""Rotation and cache append of one decode step in plain torch."""

from __future__ import annotations

from torch import Tensor

from longdecode.kernels.page_minmax.naive import PageBounds, update_page_minmax
from longdecode.kernels.rms_norm.naive import rms_norm
from longdecode.kernels.rope.naive import rotate


def rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    bounds: PageBounds | None = None,
    page_size: int = 0,
) -> Tensor:
    """Rotate one token's queries and keys by its position, store the keys and the values in its slot of the cache.

    Where norms are given, each head is normalised first (``rms_norm``); where bounds are, those of the page that the
    slot falls in are widened by the key as stored, and a page's first key replaces them (``update_page_minmax``).
    Rounds as the separate ops do. Moves ``2 * B * (Hq + 2 * Hkv) * D`` elements, and ``4 * B * Hkv * D`` for bounds.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype and strides.
        k: ``[B, Hkv, 1, D]``, likewise.
        v: ``[B, Hkv, 1, D]``, likewise.
        cos: ``[B or 1, 1, D]``, the ``D / 2`` cosines written twice.
        sin: likewise.
        k_cache: ``[B, Hkv, S, D]`` in ``k``'s dtype, changed in place.
        v_cache: ``[B, Hkv, S, D]``, likewise.
        slots: ``[B]`` int64; past the last slot they are taken as the last.
        q_norm: ``[D]``, weight of the queries' norm.
        k_norm: ``[D]``, weight of the keys' norm.
        eps: added to the mean square of both.
        bounds: pages of ``k_cache``, changed in place.
        page_size: tokens in a page of ``bounds``.

    Returns:
        The rotated queries, ``[B, Hq, 1, D]`` in their dtype.

    Raises:
        ValueError: bounds without a page size.

    Source: Su et al. 2021 (arXiv 2104.09864), equation 34, in the split-half order; Tang et al. 2024, Quest
    (arXiv 2406.10774), section 3.3, for the bounds.
    """
    if bounds is not None and page_size < 1:
        raise ValueError(f"page bounds need a page size of one token or more, got {page_size}")
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    slots = slots.clamp(max=k_cache.shape[2] - 1)
    where = slots[:, None, None, None].expand_as(k)
    k_cache.scatter_(2, where, k)
    v_cache.scatter_(2, where, v)
    if bounds is not None:
        update_page_minmax(bounds, k, slots, page_size)
    return q
