"""Shape and precision conventions that the naive kernels share."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums run in: float64 for float64 inputs, float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fold_group(q: Tensor, num_kv_heads: int) -> Tensor:
    """Queries of one GQA group as rows of their KV head, so that keys are never repeated.

    Args:
        q: ``[B, Hq, T, D]``; query head ``h`` belongs to KV head ``h // (Hq / Hkv)``.
        num_kv_heads: ``Hkv``, a divisor of ``Hq``.

    Returns:
        ``[B, Hkv, (Hq / Hkv) * T, D]``, a view where ``q`` allows one.

    Raises:
        ValueError: ``Hq`` is not a multiple of ``Hkv``.
    """
    batch, heads, rows, dim = q.shape
    if heads % num_kv_heads:
        raise ValueError(f"{heads} query heads cannot share {num_kv_heads} KV heads evenly")
    return q.reshape(batch, num_kv_heads, heads // num_kv_heads * rows, dim)


def before(lengths: Tensor, size: int) -> Tensor:
    """Mask ``[B, size]`` of the slots before each row's length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def on_host(x: Tensor) -> bool:
    """Whether looking at values of ``x`` is free; elsewhere it would stall the device and break graph capture."""
    return x.device.type == "cpu"
