"""Rotary embedding in plain torch, in the split-half layout of `transformers` checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator


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
