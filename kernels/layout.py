"""Shape and precision conventions that kernels share."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP_REDUCTIONS = ("max", "sum", "mean")


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype sums run in: float64 for float64 inputs, float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fold_group(q: Tensor, num_kv_heads: int) -> Tensor:
    """Return the queries of each GQA group as rows of their KV head, so that keys are never repeated.

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


def group_reduce(scores: Tensor, num_kv_heads: int, how: str) -> Tensor:
    """Reduce the scores of the query heads that share a KV head.

    Args:
        scores: ``[B, Hq, N]``.
        num_kv_heads: ``Hkv``, a divisor of ``Hq``.
        how: ``max``, ``sum`` or ``mean``.

    Returns:
        ``[B, Hkv, N]`` in the scores' dtype.

    Raises:
        ValueError: ``how`` is none of the three, or ``Hq`` is no multiple of ``Hkv``.
    """
    if how not in GROUP_REDUCTIONS:
        raise ValueError(f"group reduction {how!r} is none of {', '.join(GROUP_REDUCTIONS)}")
    grouped = fold_group(scores[:, :, None], num_kv_heads)
    if how == "max":
        return grouped.amax(dim=2)
    return grouped.sum(dim=2) if how == "sum" else grouped.mean(dim=2)


def before(lengths: Tensor, size: int) -> Tensor:
    """Return the mask ``[..., size]`` of the slots before each of the lengths ``[...]``."""
    return torch.arange(size, device=lengths.device) < lengths[..., None]


def block_visible(kv_lengths: Tensor, size: int, queries: int, mask: Tensor | None) -> Tensor:
    """Return which slots each row of a block reads, ``[B, 1 or Hkv, T, size]`` bool.

    The block's ``T`` keys lie in the slots ``kv_lengths - T ..``. Row ``t`` reads every slot before them and block
    slot ``u`` where ``mask[t, u]``.

    Args:
        kv_lengths: ``[B]`` or ``[B, Hkv]``, tokens stored, the block included.
        size: slots of the cache.
        queries: ``T``.
        mask: ``[T, T]`` bool; ``None`` is causal, ``u <= t``.

    Raises:
        ValueError: the mask is not ``[T, T]`` bool, or ``kv_lengths`` has another number of dimensions.
    """
    check_block(kv_lengths, mask, queries)
    lengths = (kv_lengths[:, None] if kv_lengths.dim() == 1 else kv_lengths)[..., None]
    slots = torch.arange(size, device=lengths.device)
    stored = (slots < lengths)[:, :, None]
    if queries == 1:
        return stored
    steps = torch.arange(queries, device=lengths.device)
    mask = steps <= steps[:, None] if mask is None else mask
    place = slots - (lengths - queries)
    inside = mask.T[place.clamp(0, queries - 1)].transpose(-1, -2)
    return stored & ((place < 0)[:, :, None] | inside)


def check_block(kv_lengths: Tensor, mask: Tensor | None, queries: int) -> None:
    """Refuse lengths that are not ``[B]`` or ``[B, Hkv]`` and a block mask that is not ``[T, T]`` bool.

    Raises:
        ValueError: as said.
    """
    if kv_lengths.dim() not in (1, 2):
        raise ValueError(f"kv_lengths {tuple(kv_lengths.shape)}; [B] or [B, Hkv] is needed")
    if mask is not None and (mask.shape != (queries, queries) or mask.dtype != torch.bool):
        raise ValueError(f"mask {mask.dtype} {tuple(mask.shape)}; bool [{queries}, {queries}] is needed")


def on_host(x: Tensor) -> bool:
    """Return true where looking at values of ``x`` is free; elsewhere it stalls the device and breaks graph capture."""
    return x.device.type == "cpu"


def needs_upcast(x: Tensor) -> bool:
    """Return true for bfloat16 in Triton's interpreter, which CPU tensors imply and which computes wrongly on it."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16
