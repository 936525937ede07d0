"""Launch constants of sparse decode attention: what can be tuned and what is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from longdecode.kernels.multiprocessors import (
    APART,
    fitting,
    multiprocessors,
    padded_dim,
    power_of_two,
    registers,
    share_out,
)


@dataclass(frozen=True, slots=True)
class SparseLaunch:
    """Work and resources of one program.

    ``rows`` query rows (padded; a power of two, 16 or more) and ``tokens`` a step (a power of two, 16 or more).
    ``balanced``: ``splits`` programs in all share the tokens of all lists evenly; otherwise ``splits`` programs share
    those of each list. ``fused_merge``: the last program of a list to finish joins the parts; otherwise a second
    launch does. ``registers`` a thread at most. ``list_cost``: tiles that a program where ``balanced`` could read in
    the time it takes to end one list and begin the next. On an H200, lists of 4,096 tokens and one of 131,072, batch 1,
    0 took 5 % longer than 2.

    Raises:
        ValueError: a cost below 0.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int
    splits: int
    balanced: bool = False
    fused_merge: bool = True
    registers: int = 255
    list_cost: int = 2

    def __post_init__(self) -> None:
        if self.list_cost < 0:
            raise ValueError(f"list_cost = {self.list_cost} tiles, expected 0 or more")


def choose_launch(
    lists: int,
    rows: int,
    dim: int,
    most: int,
    capacity: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    uneven: bool = False,
    score_block: int = 0,
    block: bool = False,
    codes: bool = False,
) -> SparseLaunch:
    """Choose a launch for static shapes; measured on an H200 at the shapes of Llama-3-8B.

    Lists of about one length are dealt out one by one, which costs the least before the first load. ``uneven`` lists
    share all programs evenly instead.

    Args:
        lists: index lists over all rows of the batch, ``B * Hs``.
        rows: query rows that one list serves: heads times ``T``.
        most: tokens that a full index list holds.
        capacity: tokens that the cache holds, which a list of everything may reach.
        uneven: lists may differ much in length.
        score_block: tokens of a block that lists of everything score, 0 where none does. Lists of one length then all
            read everything; where a block is larger than a tile, programs share out whole blocks.
        block: several rows a head, which may read different tokens of a list.
        codes: keys and values take one byte a number. Sized by the compiled code, not timed.
    """
    most = capacity if score_block else most
    if dtype == torch.float32:  # its products run without tensor cores, out of registers
        launch = SparseLaunch(16, 16, 4 if padded_dim(dim) <= 64 else 8, 2, 1, balanced=uneven)
        waves = 1 if launch.num_warps == 8 else 2
    else:
        # Walking over lists and scoring take registers that larger tiles would want.
        most_tokens, waves = (64, 2) if uneven or score_block or block else (128, 1 if padded_dim(dim) >= 128 else 2)
        if block and (uneven or rows > 32):
            most_tokens = 16 if uneven and rows > 32 else 32
        tokens = max(16, min(most_tokens, most_tokens * 128 // padded_dim(dim)))
        # A second launch joins the many rows of a block: 18 us instead of 43 for 8 rows, 61 instead of 103 for 41.
        launch = SparseLaunch(_least_rows(rows), tokens, 4, 3, 1, balanced=uneven, fused_merge=uneven or not block)
        if codes:
            # Two programs a multiprocessor, each with as many bytes on their way as one that reads two bytes a number.
            dtype, waves = torch.float8_e4m3fn, 2
            launch = replace(launch, num_stages=4 if tokens > 64 else 5)
    tokens, stages = fitting(launch.rows, launch.tokens, launch.num_stages, dim, dtype, device)
    launch = replace(launch, tokens=tokens, num_stages=stages, balanced=launch.balanced or score_block > tokens)
    return spread(launch, lists, rows, most, capacity, waves, device)


def _least_rows(rows: int) -> int:
    return min(64, max(16, power_of_two(rows)))


def spread(
    launch: SparseLaunch, lists: int, rows: int, most: int, capacity: int, waves: int, device: torch.device
) -> SparseLaunch:
    """Return ``launch`` with splits that make ``waves`` programs a multiprocessor, each with a tile of a full list."""
    launch = replace(launch, registers=registers(launch.num_warps, waves))
    programs = max(1, waves * multiprocessors(device) // -(-rows // launch.rows))
    if launch.balanced:
        # A row of a list is a program of the other launch. More than fit at once: a step of the 8B shape, 16K, batch 8,
        # took 2.6 % longer so on an H200, where batch 1 took 0.3 % less and the 1.5B's at 32K 2.2 %.
        fused = lists * rows > multiprocessors(device)
        return replace(launch, splits=min(programs, lists * -(-capacity // launch.tokens)), fused_merge=fused)
    splits = share_out(programs, lists, -(-min(most, capacity) // launch.tokens))
    return replace(launch, splits=splits, fused_merge=launch.fused_merge and splits < APART)
