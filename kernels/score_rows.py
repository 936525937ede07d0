"""Shared parts of kernels that score keys for a query group: the reduction over the group, and the launch."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.layout import GROUP_REDUCTIONS, needs_upcast
from longdecode.kernels.multiprocessors import shared_limit
from longdecode.kernels.overlap import overlap_settings

_PROGRAMS = 264
"""Two programs for each of an H200's 132 multiprocessors."""
_BESIDE_TILES = 16 << 10
"""Shared memory for queries and scores, more than compiled kernels were seen to take."""


@dataclass(frozen=True, slots=True)
class ScoreLaunch:
    """Launch constants of a scoring kernel: keys in a tile, tiles a program loops over, warps, pipeline stages."""

    keys: int
    tiles: int
    num_warps: int
    num_stages: int


def choose_score_launch(
    keys: int, lists: int, dim: int, dtype: torch.dtype, arrays: int, device: torch.device
) -> ScoreLaunch:
    """Choose launch constants for ``lists`` lists of ``keys`` keys; measured on an H200.

    Tiles of 16 KiB an array, and as many a program as leave two programs a multiprocessor, each with two tiles on the
    way while it works on a third. float32 products run without tensor cores, out of registers, so their tiles are
    small and not pipelined.

    Args:
        keys: keys (or pages) of a list.
        lists: batch times KV heads.
        dim: channels of a key.
        dtype: of the keys.
        arrays: how many arrays of keys the kernel reads.
        device: whose shared memory a program must fit; with less than Hopper's, fewer tiles are in flight.
    """
    padded = max(16, triton.next_power_of_2(dim))
    if dtype == torch.float32:
        return ScoreLaunch(16 if padded >= 128 else 32, 1, num_warps=4, num_stages=1)
    tile = max(16, min(128, 16_384 // padded // arrays))
    tiles = max(2, triton.cdiv(triton.cdiv(keys, tile) * lists, _PROGRAMS))
    held = (shared_limit(device) - _BESIDE_TILES) // (tile * padded * dtype.itemsize * arrays)
    return ScoreLaunch(tile, min(tiles, 32), num_warps=4, num_stages=max(1, min(held, 3 if tiles > 2 else 4)))


def check_group(group: str | None, heads: int, kv_heads: int, queries: int) -> None:
    """Refuse arguments that a scoring kernel does not take.

    Raises:
        ValueError: the reduction is unknown, the heads do not divide, or there is more than one query row.
    """
    if group is not None and group not in GROUP_REDUCTIONS:
        raise ValueError(f"group reduction {group!r} is none of {', '.join(GROUP_REDUCTIONS)}")
    if queries != 1 or heads % kv_heads:
        raise ValueError(
            f"{heads} query heads of {queries} rows do not share {kv_heads} KV heads, one row each, evenly"
        )


def score_keys(
    kernel: Any, q: Tensor, arrays: tuple[Tensor, ...], lengths: Tensor, group: str | None, launch: ScoreLaunch | None,
    *numbers: object,
) -> Tensor:  # fmt: skip
    """Run a scoring kernel, grid ``(key tiles / tiles a program, B * Hkv)``.

    Args:
        kernel: takes queries, arrays, lengths, scores, the strides of queries and arrays, ``numbers``, and the sizes.
        q: ``[B, Hq, 1, D]``.
        arrays: ``[B, Hkv, N, D]`` each, any strides.
        lengths: ``[B]`` integers, keys in use in each row.
        group: the reduction over the query heads of a KV head, or ``None``.
        launch: launch constants; from the shapes when left out.
        numbers: what else the kernel takes.

    Returns:
        ``[B, Hq, N]``, or ``[B, Hkv, N]`` under a group reduction, in float32.

    Raises:
        ValueError: as ``check_group``.
    """
    (batch, heads, queries, dim), (kv_heads, size) = q.shape, arrays[0].shape[1:3]
    check_group(group, heads, kv_heads, queries)
    rows, lists = heads // kv_heads, batch * kv_heads
    launch = launch or choose_score_launch(size, lists, dim, q.dtype, len(arrays), q.device)
    out = torch.empty(batch, kv_heads if group else heads, size, dtype=torch.float32, device=q.device)
    with torch.cuda.device_of(q):
        kernel[(triton.cdiv(size, launch.keys * launch.tiles), lists)](
            q, *arrays, lengths.contiguous(), out, q.stride(0), q.stride(1), q.stride(3),
            *(stride for array in arrays for stride in array.stride()), *numbers, rows, kv_heads, size,
            REDUCE=group or "none", DIM=dim, BLOCK_DIM=max(16, triton.next_power_of_2(dim)),
            BLOCK_ROWS=max(16, triton.next_power_of_2(rows)), BLOCK_KEYS=launch.keys, TILES=launch.tiles,
            STAGES=launch.num_stages, UPCAST=needs_upcast(q), num_warps=launch.num_warps,
            **overlap_settings(True, q.device),
        )  # fmt: skip
    return out


@triton.jit
def store_scores(p_out, b_scores, visible, i_list, o_row, o_key, rows, size, REDUCE: tl.constexpr):
    """Write a tile's scores ``[N, R]``, reduced over the rows or row by row; minus infinity where not ``visible``."""
    if REDUCE == "none":
        b_scores = tl.where(visible[:, None], b_scores, float("-inf"))
        o_out = (i_list * rows + o_row)[None, :] * size + o_key[:, None]
        tl.store(p_out + o_out, b_scores, mask=(o_row < rows)[None, :] & (o_key < size)[:, None])
    else:
        b_score = tl.where(visible, reduce_rows(b_scores, o_row, rows, REDUCE), float("-inf"))
        tl.store(p_out + i_list * size + o_key, b_score, mask=o_key < size)


@triton.jit
def reduce_rows(b_scores, o_row, rows, REDUCE: tl.constexpr):
    """Reduce ``[N, R]`` scores of a group's queries to ``[N]`` by max, sum or mean; padding rows hold zeros."""
    if REDUCE == "max":
        return tl.max(tl.where((o_row < rows)[None, :], b_scores, float("-inf")), 1)
    b_score = tl.sum(b_scores, 1)
    return b_score / rows if REDUCE == "mean" else b_score


@triton.jit
def load_keys(p_keys, o_key, key_stride, o_dim, dim_stride, visible, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Load a tile ``[N, BLOCK_DIM]`` of keys, zero where not ``visible`` and past ``DIM`` channels."""
    # Without a mask on the channels, where none is needed, so that loads stay 16 bytes wide.
    loaded = visible[:, None] if DIM == BLOCK_DIM else visible[:, None] & (o_dim < DIM)[None, :]
    o_keys = o_key.to(tl.int64)[:, None] * key_stride + (o_dim * dim_stride)[None, :]
    return tl.load(p_keys + o_keys, mask=loaded, other=0.0)
