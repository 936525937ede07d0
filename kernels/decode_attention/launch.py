"""Launch constants of decode attention: what can be tuned and what is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from longdecode.kernels.multiprocessors import (
    APART,
    fitting,
    multiprocessors,
    padded_dim,
    registers,
    resident,
    share_out,
)


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """Work and resources of one program.

    ``rows`` query rows (of one KV head's group, padded; a power of two, 16 or more) and ``tokens`` a step (a power of
    two, 16 or more); ``splits`` programs share the tokens of one KV head. ``fused_merge``: the last of them to finish
    joins their parts; otherwise a second launch does. ``registers`` a thread at most.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int
    splits: int
    fused_merge: bool = True
    registers: int = 255


def choose_launch(
    batch: int,
    kv_heads: int,
    rows: int,
    dim: int,
    capacity: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    queries: int = 1,
) -> DecodeLaunch:
    """Choose a launch for static shapes.

    Chosen on an H200 at the shapes of Llama-3-8B. One row a sequence: one
    program a multiprocessor with two tiles of 64 KiB on their way reads fastest; smaller heads need two for as many
    bytes. More than 16 rows take the wide tensor-core instructions. A block's parts are joined by a second launch: over
    65,536 tokens 41 rows take 115 us so, in tiles of 64, and 145 in tiles of 128 (the table ``tune_launches`` of
    ``results/h200``, in the history up to revision 1b0697b).

    Args:
        rows: query rows that share a KV head: group times ``T``.
        capacity: tokens that the cache holds.
        queries: ``T``.
    """
    padded = padded_dim(dim)
    if dtype == torch.float32:  # its products run without tensor cores, out of registers
        launch = DecodeLaunch(16, 16, 4 if padded <= 64 else 8, 2, 1)
    elif rows <= 16:
        launch = DecodeLaunch(16, max(16, min(128, 16_384 // padded)), 4, 3, 1, fused_merge=queries == 1)
    elif queries > 1 and rows <= 32:
        launch = DecodeLaunch(32, max(16, min(128, 16_384 // padded)), 4, 3, 1, fused_merge=False)
    else:
        launch = DecodeLaunch(64, max(16, min(128, 8192 // padded)), 4, 3, 1, fused_merge=queries == 1)
    tokens, stages = fitting(launch.rows, launch.tokens, launch.num_stages, dim, dtype, device)
    launch = replace(launch, tokens=tokens, num_stages=stages)
    large = launch.num_warps == 8 or (launch.rows <= 32 and padded >= 128)
    waves = 1 if large else min(2, resident(launch.rows, tokens, stages, dim, dtype))
    return spread(launch, batch * kv_heads, rows, capacity, waves, device)


def spread(
    launch: DecodeLaunch, lists: int, rows: int, capacity: int, waves: int, device: torch.device
) -> DecodeLaunch:
    """Return ``launch`` with splits that make ``waves`` programs a multiprocessor, each with a tile of a full row."""
    splits = share_out(waves * multiprocessors(device), lists * -(-rows // launch.rows), -(-capacity // launch.tokens))
    fused = launch.fused_merge and splits < APART
    return replace(launch, splits=splits, fused_merge=fused, registers=registers(launch.num_warps, waves))
