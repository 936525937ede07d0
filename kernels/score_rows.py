"""The reduction over a query group inside other Triton kernels, and the launch shape those kernels share."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from longdecode.kernels.layout import GROUP_REDUCTIONS
from longdecode.kernels.multiprocessors import shared_limit

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
