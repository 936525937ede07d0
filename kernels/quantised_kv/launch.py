"""Launches of attention over quantised keys and values: their constants, and the call that both formats share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longdecode.kernels.multiprocessors import APART, multiprocessors, padded_dim, power_of_two, share_out
from longdecode.kernels.quantised_kv.naive import Fp8Layer, Int4Layer
from longdecode.kernels.split_kv import (
    LOG2E,
    arrival_counters,
    empty_outputs,
    merge_partials,
    merge_tile,
    new_partials,
)


@dataclass(frozen=True, slots=True)
class QuantisedLaunch:
    """Work and resources of one program: ``rows`` queries (padded), ``splits`` programs for each list.

    ``registers`` a thread at most; the compiler's choice where ``None``.
    """

    rows: int
    splits: int
    num_stages: int
    num_warps: int = 4
    registers: int | None = None


def choose_fp8_launch(
    lists: int, rows: int, dim: int, tiles: int, dtype: torch.dtype, device: torch.device
) -> QuantisedLaunch:
    """Choose a launch of eight-bit attention: four tiles of 32 KiB of a multiprocessor on their way.

    Two programs a multiprocessor share them, or one has all. On an H200 a layer of Llama-3-8B's shape, one row of
    131,072 tokens, takes 70.2 us with two and 73.5 us with one (62 tiles a multiprocessor); with two KV heads, eight
    rows of 16,384 tokens take 27.3 and 26.0 us (15 tiles), one row of 32,768 tokens 11.3 and 11.6 us (4 tiles).

    Args:
        lists: batch times KV heads.
        rows: query heads that share a KV head.
        dim: channels of a head.
        tiles: tiles of tokens that the cache holds.
        dtype: of the queries; float32 multiplies out of registers.
        device: whose multiprocessors share the work.
    """
    large, exact = padded_dim(dim) >= 128, dtype == torch.float32
    one = large and (exact or 8 <= lists * tiles // multiprocessors(device) < 32)
    splits = share_out((1 if one else 2) * multiprocessors(device), lists, tiles)
    if exact:
        return QuantisedLaunch(max(16, power_of_two(rows)), splits, num_stages=2, num_warps=16)
    return QuantisedLaunch(max(16, power_of_two(rows)), splits, num_stages=5 if one or not large else 3, registers=255)


def choose_int4_launch(lists: int, rows: int, tiles: int, dtype: torch.dtype, device: torch.device) -> QuantisedLaunch:
    """Choose a launch of four-bit attention: two programs a multiprocessor, whose four warps unpack a group each.

    On an H200 three programs of fewer registers or of one tile on its way took 10 % longer, four 40 %. Products in
    float32 share a group between two warps: one has too few registers. Arguments as in ``choose_fp8_launch``.
    """
    splits = share_out(2 * multiprocessors(device), lists, tiles)
    if dtype == torch.float32:
        return QuantisedLaunch(max(8, power_of_two(rows)), splits, num_stages=2, num_warps=8)
    return QuantisedLaunch(max(8, power_of_two(rows)), splits, num_stages=3, registers=255)


def attend_in_splits(
    kernel: Any, launch: QuantisedLaunch, layer: Fp8Layer | Int4Layer, q: Tensor, lengths: Tensor,
    kv_tokens_read: Tensor | None, strides: Sequence[int], size: int, padded: int, **constants: Any,
) -> Tensor:  # fmt: skip
    """Run a format's kernel, grid ``(splits, Hkv, B)``, and a merge behind it where there are many parts to join.

    Args:
        kernel: whose arguments are ordered as those of both formats are.
        launch: how.
        layer: the storage.
        q: ``[B, Hq, 1, D]``.
        lengths: ``[B]`` int64.
        kv_tokens_read: ``[B]`` int64, or ``None``.
        strides: of the storage, as the kernel takes them.
        size: of a list: tokens or groups that it holds.
        padded: channels of a program's sums.
        constants: the kernel's other compile-time arguments.

    Returns:
        ``[B, Hq, 1, D]`` in ``q``'s dtype.
    """
    (batch, heads, _, dim), kv_heads = q.shape, layer.k.shape[1]
    rows, lists, fused = heads // kv_heads, batch * kv_heads, launch.splits < APART
    partials = new_partials(lists * launch.splits, rows, dim, q.device)
    out, lse = empty_outputs(q)
    merge_rows, merge_some = merge_tile(rows, launch.splits, padded, launch.num_warps)
    settings = {} if launch.registers is None else {"maxnreg": launch.registers}
    with torch.cuda.device_of(q):
        kernel[(launch.splits, kv_heads, batch)](
            q, *layer, lengths.contiguous(), *partials, arrival_counters(lists, q.device), out, lse, kv_tokens_read,
            q.stride(0), q.stride(1), q.stride(3), *strides, 0 if kv_tokens_read is None else kv_tokens_read.stride(0),
            LOG2E * dim**-0.5, size, kv_heads, DIM=dim, BLOCK_ROWS=launch.rows, ROWS=rows, SPLITS=launch.splits,
            MERGE_ROWS=merge_rows, MERGE_PARTS=merge_some, WIDE=q.dtype == torch.float32, FUSED=fused,
            num_warps=launch.num_warps, **settings, **constants,
        )  # fmt: skip
        if not fused:
            merge_partials(partials, launch.splits, out, lse)
    return out
