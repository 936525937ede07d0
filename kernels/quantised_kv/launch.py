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
    """Choose a launch of eight-bit attention: two programs a multiprocessor, two tiles of 32 KiB of each on their way.

    On an H200 at the shape of Llama-3-8B, one row of 131,072 tokens, a layer takes 70.2 us so (3.8 TB/s), and 73.5 us
    with one program of four tiles.

    Args:
        lists: batch times KV heads.
        rows: query heads that share a KV head.
        dim: channels of a head.
        tiles: tiles of tokens that the cache holds.
        dtype: of the queries; float32 multiplies out of registers.
        device: whose multiprocessors share the work.
    """
    large, exact = padded_dim(dim) >= 128, dtype == torch.float32
    splits = share_out((1 if large and exact else 2) * multiprocessors(device), lists, tiles)
    if exact:
        return QuantisedLaunch(max(16, power_of_two(rows)), splits, num_stages=2, num_warps=16)
    stages = 3 if large else 5
    return QuantisedLaunch(max(16, power_of_two(rows)), splits, num_stages=stages, registers=255)


def choose_int4_launch(lists: int, rows: int, tiles: int, dtype: torch.dtype, device: torch.device) -> QuantisedLaunch:
    """Choose a launch of four-bit attention: two programs a multiprocessor, whose four warps unpack a group each.

    On an H200 three programs of fewer registers or of one tile on its way took 10 % longer, four 40 %. Products in
    float32 share a group between two warps: one has too few registers. Arguments as in ``choose_fp8_launch``.
    """
    splits = share_out(2 * multiprocessors(device), lists, tiles)
    if dtype == torch.float32:
        return QuantisedLaunch(max(8, power_of_two(rows)), splits, num_stages=2, num_warps=8)
    return QuantisedLaunch(max(8, power_of_two(rows)), splits, num_stages=3, registers=255)
