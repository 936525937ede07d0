"""Launch constants of attention over blocks in slots: what can be tuned and what is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from longdecode.kernels.multiprocessors import (
    MERGE_PARTS,
    fitting,
    multiprocessors,
    padded_dim,
    power_of_two,
    registers,
)

COPYING = 12
"""Multiprocessors that the copy's programs take."""
SHARE_TOKENS = 128
"""Tokens of a part: 2 blocks of 64."""


@dataclass(frozen=True, slots=True)
class ResidentLaunch:
    """Work and resources of one program.

    ``rows`` query rows (padded; a power of two, 16 or more) and ``tokens`` a step (a power of two, 16 or more).
    ``share``: tokens of a part, which waits whole for its late blocks: a small one leaves less to be read after the
    copy, and more parts to be joined. ``parts``: those that one program joins, a power of two of at most 16; it reads
    what is at hand before it waits. ``registers`` a thread at most.

    Raises:
        ValueError: the share is no multiple of a step, or the parts are no such number.
    """

    rows: int
    tokens: int
    share: int
    parts: int
    num_warps: int
    num_stages: int
    registers: int = 255

    def __post_init__(self) -> None:
        if self.share < 1 or self.share % self.tokens:
            raise ValueError(f"share = {self.share}: a program reads whole steps of {self.tokens} tokens")
        if self.parts not in (1, 2, 4, 8, 16):
            raise ValueError(f"parts = {self.parts}: a power of two of at most 16 is needed")

    def splits_of(self, most: int) -> int:
        """Return the programs that share a list of up to ``most`` tokens."""
        return max(1, -(-most // (self.share * self.parts)))


def choose_launch(
    lists: int, rows: int, dim: int, most: int, dtype: torch.dtype, device: torch.device
) -> ResidentLaunch:
    """Choose a launch for static shapes: parts of ``SHARE_TOKENS`` where they can be joined.

    Args:
        lists: over all rows of the batch, ``B * Hkv``.
        rows: query heads that one list serves.
        dim: of a head.
        most: tokens that a full list holds.
        dtype: of queries, keys and values.
        device: that runs it.
    """
    if dtype == torch.float32:  # its products run without tensor cores, out of registers
        block_rows, tokens, warps, stages, beside = 16, 16, 4 if padded_dim(dim) <= 64 else 8, 2, 1
    else:
        block_rows, warps, stages, beside = min(64, max(16, power_of_two(rows))), 4, 3, 2
        tokens = max(16, min(64, 64 * 128 // padded_dim(dim)))
    tokens, stages = fitting(block_rows, tokens, stages, dim, dtype, device)
    share, each, row_tiles = SHARE_TOKENS, 1, -(-rows // block_rows)
    # One wave beside the copy, and a few programs that follow it.
    most_programs = 5 * beside * (multiprocessors(device) - COPYING) // 4

    def programs() -> int:
        return lists * row_tiles * -(-most // (share * each))

    while programs() > max(most_programs, lists * row_tiles) or -(-most // (share * each)) > 4 * MERGE_PARTS:
        share, each = (share, 2 * each) if each < 16 else (2 * share, each)
    return ResidentLaunch(block_rows, tokens, share, each, warps, stages, registers(warps, beside))
