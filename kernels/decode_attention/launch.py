"""How decode attention is launched: what can be tuned, what is chosen, what is worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch

from longdecode.kernels.multiprocessors import multiprocessors, power_of_two

MOST_SPLITS = 128


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """What one program works on and with.

    ``rows`` query rows (of one KV head's group, padded; a power of two, 16 or more) and ``tokens`` a step (a power of
    two, 16 or more); ``splits`` programs share the tokens of one KV head. ``fused_merge``: the last of them to finish
    joins their parts; otherwise a second launch does.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int
    splits: int
    fused_merge: bool = True


def choose_launch(
    batch: int, kv_heads: int, rows: int, dim: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> DecodeLaunch:
    """The launch for static shapes; not yet tuned.

    Args:
        rows: query rows that share a KV head: group times query rows.
        capacity: tokens that the cache holds.
    """
    padded = max(16, power_of_two(dim))
    tile = min(64, max(16, power_of_two(rows)))
    if dtype == torch.float32:
        tile, tokens, stages = 16, 32 if padded <= 64 else 16, 2
    else:
        tokens, stages = {16: 128, 32: 128, 64: 128, 128: 64}.get(padded, 32), 4 if padded <= 128 else 3
    programs = batch * kv_heads * -(-rows // tile)
    return DecodeLaunch(tile, tokens, 4, stages, _splits(programs, capacity, tokens, 2, device))


def candidates(
    batch: int, kv_heads: int, rows: int, dim: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> list[DecodeLaunch]:
    """Launches worth timing at these shapes on a GPU of Hopper's kind, ``choose_launch``'s first."""
    chosen = choose_launch(batch, kv_heads, rows, dim, capacity, dtype, device)
    found = [chosen]
    size = 2 * dtype.itemsize * max(16, power_of_two(dim))
    for tile, tokens, warps, stages in product((16, 32, 64, 128), (64, 128, 256), (4, 8), (2, 3, 4, 5)):
        # A rows tile beyond need only pays at 64, where the wide tensor-core instructions begin.
        if tile > max(64, power_of_two(rows)) or 16 < tile < min(64, power_of_two(rows)) or (tile == 32 and rows <= 16):
            continue
        in_flight = tokens * size * (stages - 1)
        if not 32 << 10 <= in_flight <= 192 << 10 or (warps == 8 and tokens == 64):
            continue
        for waves in (1, 2) if tokens * size * stages <= 100 << 10 else (1,):
            splits = _splits(batch * kv_heads * -(-rows // tile), capacity, tokens, waves, device)
            found.append(DecodeLaunch(tile, tokens, warps, stages, splits))
    unique = list(dict.fromkeys(found))
    return unique[:40]


def _splits(programs: int, capacity: int, tokens: int, waves: int, device: torch.device) -> int:
    """Splits that make ``waves`` programs a multiprocessor, none with less than a tile of a full row."""
    wanted = round(waves * multiprocessors(device) / programs)
    return max(1, min(wanted, -(-capacity // tokens), MOST_SPLITS))
