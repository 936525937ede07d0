"""Launch constants of attention over quantised keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from longdecode.kernels.multiprocessors import multiprocessors, padded_dim, power_of_two, share_out


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
