"""Launch constants of decode attention: what can be tuned and what is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from longdecode.kernels.multiprocessors import fitting, multiprocessors, padded_dim, registers, resident, share_out


@dataclass(frozen=True, slots=True)
class DecodeLaunch:
    """Work and resources of one program.

    ``rows`` query rows (of one KV head's group, padded; a power of two, 16 or more) and ``tokens`` a step (a power of
    two, 16 or more); ``splits`` programs share the tokens of one KV head. ``fused_merge``: the last of them to finish
    joins their parts; otherwise a second launch does. ``registers`` a thread at most. ``extra_rows``: a second tile of
    rows (a power of two) that shares each load of a block's kernel, for 192 rows without padding to 256.

    Raises:
        ValueError: extra rows with a fused merge, which counts one tile of rows a program.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int
    splits: int
    fused_merge: bool = True
    registers: int = 255
    extra_rows: int = 0

    def __post_init__(self) -> None:
        if self.extra_rows and self.fused_merge:
            raise ValueError("extra_rows need a merge of their own: fused_merge cannot be True")


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

    Chosen on an H200 at the shapes of Llama-3-8B (``evals/throughput/tune_launches.py``). One row a sequence: one
    program a multiprocessor with two tiles of 64 KiB on their way reads fastest; smaller heads need two for as many
    bytes. More than 16 rows take the wide tensor-core instructions.

    Args:
        rows: query rows that share a KV head: group times ``T``.
        capacity: tokens that the cache holds.
        queries: ``T``.
    """
    padded = padded_dim(dim)
    if dtype == torch.float32:  # its products run without tensor cores, out of registers
        launch = DecodeLaunch(16, 16, 4 if padded <= 64 else 8, 2, 1)
    elif rows <= 16:
        launch = DecodeLaunch(16, max(16, min(128, 16_384 // padded)), 4, 3, 1)
    elif queries == 1 or rows <= 64:
        launch = DecodeLaunch(64, max(16, min(128, 8192 // padded)), 4, 3, 1, fused_merge=queries == 1)
    else:
        # 129 to 192 rows as 128 and 64: three quarters of the products of two tiles of 128.
        extra = 64 if 128 < rows <= 192 else 0
        launch = DecodeLaunch(128, max(16, min(128, 8192 // padded)), 8, 3, 1, fused_merge=False, extra_rows=extra)
    tokens, stages = fitting(launch.rows + launch.extra_rows, launch.tokens, launch.num_stages, dim, dtype, device)
    launch = replace(launch, tokens=tokens, num_stages=stages)
    large = launch.num_warps == 8 or (rows <= 16 and padded >= 128)
    waves = 1 if large else min(2, resident(launch.rows, tokens, stages, dim, dtype))
    return spread(launch, batch * kv_heads, rows, capacity, waves, device)


def spread(
    launch: DecodeLaunch, lists: int, rows: int, capacity: int, waves: int, device: torch.device
) -> DecodeLaunch:
    """Return ``launch`` with splits that make ``waves`` programs a multiprocessor, each with a tile of a full row."""
    programs = waves * multiprocessors(device)
    row_tiles = -(-rows // (launch.rows + launch.extra_rows))
    splits = share_out(programs, lists * row_tiles, -(-capacity // launch.tokens))
    return replace(launch, splits=splits, registers=registers(launch.num_warps, waves))
