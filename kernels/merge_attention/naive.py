"""Merging partial attention in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_attention(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention over the union of two disjoint key sets from the attention over each.

    ``out = (e^{lse_a} out_a + e^{lse_b} out_b) / (e^{lse_a} + e^{lse_b})``, ``lse = log(e^{lse_a} + e^{lse_b})``. An
    empty set has an ``lse`` of minus infinity and leaves the other unchanged; two empty sets give zeros.

    Args:
        out_a: ``[B, H, T, D]``, any float dtype.
        lse_a: ``[B, H, T]`` float32 (float64 for float64), natural logarithm.
        out_b: ``[B, H, T, D]``.
        lse_b: ``[B, H, T]``.

    Returns:
        ``out`` in ``out_a``'s dtype and ``lse`` in ``lse_a``'s.

    Source: Dao 2023, FlashAttention-2 (arXiv 2307.08691), section 3.1.1: rescaling of partial outputs.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    base = torch.where(lse == float("-inf"), 0.0, lse)
    weight_a, weight_b = torch.exp(lse_a - base)[..., None], torch.exp(lse_b - base)[..., None]
    out = weight_a * out_a.to(lse.dtype) + weight_b * out_b.to(lse.dtype)
    return out.to(out_a.dtype), lse
