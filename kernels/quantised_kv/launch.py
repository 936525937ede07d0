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
    """Choose a launch of eight-bit attention: one program a multiprocessor, four tiles of 32 KiB on their way.

    Args:
        lists: batch times KV heads.
        rows: query heads that share a KV head.
        dim: channels of a head.
        tiles: tiles of tokens that the cache holds.
        dtype: of the queries; float32 multiplies out of registers.
        device: whose multiprocessors share the work.
    """
    waves = 1 if padded_dim(dim) >= 128 else 2
    splits = share_out(waves * multiprocessors(device), lists, tiles)
    if dtype == torch.float32:
        return QuantisedLaunch(max(16, power_of_two(rows)), splits, num_stages=2, num_warps=16)
    return QuantisedLaunch(max(16, power_of_two(rows)), splits, num_stages=5, registers=255)


def choose_int4_launch(lists: int, rows: int, tiles: int, dtype: torch.dtype, device: torch.device) -> QuantisedLaunch:
    """Choose a launch of four-bit attention: two programs a multiprocessor, whose four warps unpack a group each.

    Unpacking takes most of a tile's instructions, so that two programs fill the schedulers and their registers are
    bounded. Arguments as in ``choose_fp8_launch``.
    """
    splits = share_out(2 * multiprocessors(device), lists, tiles)
    if dtype == torch.float32:
        return QuantisedLaunch(max(8, power_of_two(rows)), splits, num_stages=2)
    return QuantisedLaunch(max(8, power_of_two(rows)), splits, num_stages=3, registers=255)
