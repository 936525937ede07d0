"""Device limits and sizes that the launch rules of attention use."""

from __future__ import annotations

from functools import cache

import torch

H200_MULTIPROCESSORS = 132
SHARED_BYTES = 228 << 10
"""Shared memory of a Hopper multiprocessor; a program may have 1 KiB less (CUDA C++ programming guide, table 27)."""
MERGE_PARTS = 32
"""Parts of a list that one step of a merge reads; with more it waits for memory twice."""
APART = 8
"""Parts of a list from which on a launch of their own joins them: one program would do so while all others wait.

On an H200, batch 1, Quest's step took 3 to 8 % less so at Llama-3-8B's shape, 6 to 8 % less at
Qwen2.5-1.5B's. That was of 16 parts and more, and of 16 bits a number.
"""
_RESERVED_BYTES = 1 << 10


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the multiprocessors of a CUDA device; an H200's where there is none to ask."""
    if device.type != "cuda":
        return H200_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_limit(device: torch.device) -> int:
    """Return the shared memory that one program may have, in bytes; a Hopper GPU's where there is none to ask."""
    if device.type != "cuda":
        return SHARED_BYTES - _RESERVED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is ``number`` or more."""
    return 1 << max(0, number - 1).bit_length()


def padded_dim(dim: int) -> int:
    """Return the channels of a tile: a power of two that tensor cores take."""
    return max(16, power_of_two(dim))


def program_bytes(rows: int, tokens: int, num_stages: int, dim: int, dtype: torch.dtype) -> int:
    """Return the shared memory of one program of split-KV attention, as Triton 3.7 lays it out.

    A stage is a tile of keys and one of values; from 64 rows on the wide tensor-core instructions read both where they
    lie, so that a tile in use takes a stage of its own. Beside the stages lie the queries.
    """
    row_bytes = padded_dim(dim) * dtype.itemsize
    stages = num_stages if rows >= 64 else num_stages - 1
    return 2 * tokens * row_bytes * stages + max(8 << 10, rows * row_bytes)


def resident(rows: int, tokens: int, num_stages: int, dim: int, dtype: torch.dtype) -> int:
    """Return the programs of split-KV attention that a Hopper multiprocessor's shared memory holds."""
    return SHARED_BYTES // (program_bytes(rows, tokens, num_stages, dim, dtype) + _RESERVED_BYTES)


def fitting(
    rows: int, tokens: int, num_stages: int, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, int]:
    """Return the tokens a step and stages of split-KV attention that the device's shared memory allows a program.

    What fits stays as it is; else stages are dropped first, then tiles halved. On Hopper every rule's choice fits.
    """
    while program_bytes(rows, tokens, num_stages, dim, dtype) > shared_limit(device) and (
        num_stages > 2 or tokens > 16
    ):
        tokens, num_stages = (tokens, num_stages - 1) if num_stages > 2 else (tokens // 2, num_stages)
    return tokens, num_stages


def registers(num_warps: int, waves: int) -> int:
    """Return the registers a thread may take when ``waves`` programs share a multiprocessor's 65,536.

    Left to itself, ptxas stops short of some count and spills a few bytes to stay there.
    """
    return min(255, 65_536 // (32 * num_warps * waves) // 8 * 8)


def share_out(programs: int, lists: int, tiles: int) -> int:
    """Return the programs for each list when at most ``programs`` share ``lists`` lists of ``tiles`` tiles.

    Rounded down, since a program that finds no room beside the others would run after them; none without a tile, and
    not a few more than a merge reads at once.
    """
    wanted = min(programs // lists, tiles, 4 * MERGE_PARTS)
    return max(1, MERGE_PARTS if MERGE_PARTS < wanted <= MERGE_PARTS * 5 // 4 else wanted)
