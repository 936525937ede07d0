"""How decode attention is launched: what can be tuned, what is chosen, what is worth trying."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch

from longdecode.kernels.multiprocessors import fitting, multiprocessors, padded_dim, registers, resident, share_out


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """What one program works on and with.

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
    batch: int, kv_heads: int, rows: int, dim: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> DecodeLaunch:
    """The launch for static shapes, chosen on an H200 among ``candidates`` at the shapes of Llama-3-8B.

    One program a multiprocessor with two tiles of 64 KiB on their way reads fastest; smaller heads need two for as
    many bytes. More than 16 rows take the wide tensor-core instructions, 64 rows a program: of 128 rows over
    131,072 tokens, two programs that read the same keys took a third less than one for one sequence, 3 % more for four.

    Args:
        rows: query rows that share a KV head: group times query rows.
        capacity: tokens that the cache holds.
    """
    if dtype == torch.float32:  # its products run without tensor cores, out of registers
        launch = DecodeLaunch(16, 16, 4 if padded_dim(dim) <= 64 else 8, 2, 1)
    else:
        tokens = max(16, min(128, 8192 // padded_dim(dim)))
        if rows <= 16:
            launch = DecodeLaunch(16, max(16, min(128, 16_384 // padded_dim(dim))), 4, 3, 1)
        else:
            launch = DecodeLaunch(64, tokens, 4, 3, 1)
    tokens, stages = fitting(launch.rows, launch.tokens, launch.num_stages, dim, dtype, device)
    launch = replace(launch, tokens=tokens, num_stages=stages)
    large = launch.num_warps == 8 or (rows <= 16 and padded_dim(dim) >= 128)
    waves = 1 if large else min(2, resident(launch.rows, tokens, stages, dim, dtype))
    return _spread(launch, batch * kv_heads, rows, capacity, waves, device)


def candidates(
    batch: int, kv_heads: int, rows: int, dim: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> list[DecodeLaunch]:
    """Launches worth timing at these shapes on a Hopper GPU, ``choose_launch``'s first, at most 40."""
    found = [choose_launch(batch, kv_heads, rows, dim, capacity, dtype, device)]
    if dtype == torch.float32:
        shapes = [(16, tokens, warps, 2) for tokens in (16, 32) for warps in (4, 8)]
    else:
        shapes = [(64, 64, 4, 3), (64, 64, 4, 4), (64, 64, 4, 5), (64, 128, 4, 2), (64, 128, 4, 3), (64, 128, 8, 3)]
        shapes += [(64, 128, 4, 4), (64, 32, 4, 4), (64, 32, 4, 5)]
        if rows <= 16:
            shapes += [(16, 32, 4, 5), (16, 64, 4, 3), (16, 64, 4, 4), (16, 64, 4, 5), (16, 128, 4, 2), (16, 128, 4, 3)]
            shapes += [(16, 128, 4, 4), (16, 128, 8, 3), (16, 128, 8, 4), (16, 256, 8, 2)]
        if rows > 64:
            shapes += [(128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3)]
    for shape, waves in product(shapes, (1, 2, 3)):
        launch = DecodeLaunch(*shape, splits=1)
        fits = waves <= resident(launch.rows, launch.tokens, launch.num_stages, dim, dtype)
        if fits and launch.num_warps * waves <= 16:  # the registers of more would not do
            found.append(_spread(launch, batch * kv_heads, rows, capacity, waves, device))
    return list(dict.fromkeys(found))[:40]


def _spread(
    launch: DecodeLaunch, lists: int, rows: int, capacity: int, waves: int, device: torch.device
) -> DecodeLaunch:
    """``launch`` with splits that make ``waves`` programs a multiprocessor, each with a tile of a full row."""
    programs = waves * multiprocessors(device)
    splits = share_out(programs, lists * -(-rows // launch.rows), -(-capacity // launch.tokens))
    return replace(launch, splits=splits, registers=registers(launch.num_warps, waves))
