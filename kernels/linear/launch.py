"""Launch constants of the projection kernels: settings and the rule that picks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from longdecode.kernels.multiprocessors import H200_MULTIPROCESSORS as MULTIPROCESSORS

MAX_ROWS = 16
"""Rows up to which any weight is worth streaming by hand; beyond, a large one belongs to cuBLAS."""
NARROW = 2048
"""Channels or outputs up to which a weight is a narrow model's."""
NARROW_ROWS = 64
"""Rows up to which a narrow model's weight is streamed by hand."""
NORM_CHANNELS = 4096
"""Most channels of a row that a projection norms itself: eight weight rows are then 64 registers a thread."""

SHARED_LIMIT_BYTES = 232_448
"""Shared memory one block may have on compute capability 9.0 (CUDA C++ programming guide, table 27)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of one projection; results differ between them by float rounding alone.

    ``block_n`` weight rows (as many of gate and of up, where gated) and ``block_k`` channels make a tile, which
    ``num_warps`` warps of a program share.

    Body ``fma`` multiplies in float32 registers, one row of ``x`` a program: it is meant for one row. Body ``dot``
    multiplies ``block_rows`` rows at once on tensor cores; ``k_parts`` groups of warps share a tile's channels, where
    its weight rows are too few for all of them, ``splits`` programs, where there are too few programs. Tiles of at
    least 64 weight rows and 16 rows take Hopper's ``wgmma``, which reads the weight straight from shared memory.

    ``num_stages`` tiles are in flight through shared memory; with 1 they go straight to registers, of which a thread
    has ``max_registers`` (the compiler's choice where ``None``).

    ``launch_pdl`` starts the kernel before those ahead of it have ended (programmatic dependent launch): a program
    loads its first tile of weight (body ``fma``), asks for the next ``prefetch`` tiles to be brought to L2, then waits
    for all that came before. ``gpu.py`` says why that is safe.
    """

    body: Literal["fma", "dot"]
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int = 1
    k_parts: int = 1
    block_rows: int = 16
    splits: int = 1
    max_registers: int | None = None
    eviction: str = "evict_first"
    launch_pdl: bool = True
    prefetch: int = 1


def choose_launch(
    n: int, k: int, rows: int, dtype: torch.dtype, gated: bool = False, shared_bytes: int = SHARED_LIMIT_BYTES
) -> Launch | None:
    """Choose settings by shape, or ``None`` where torch serves: float32, and more rows than ``MAX_ROWS``.

    Of a narrow model's weights up to ``NARROW_ROWS`` are served, all in one tile: its pass is bound by launches, which
    here overlap. Beyond 16 rows each choice was the fastest tried at the 1.5B shape on one H100; torch, which was tried
    too, has the small ones beyond 32. At 8 rows smaller tiles won alone and made a step slower on an H200.

    Measured on an H200 at the shapes of Llama-3-8B. One row: small programs fill the device to the
    last multiprocessor; larger tiles where the channels are many or the outputs outnumber all programs. More rows:
    tall tiles for large weights, because ``x`` is read again for each; groups of warps share the channels of a short
    one. A small model's weights have too few rows for that: one row's channels are then one tile, loaded whole before
    the kernels ahead have ended. On an H100 a step of a 1.5B shape at batch 1 took 0.84 of its time so, attention's
    separate merge included; smaller tiles for 8 and 32 rows made steps up to 4 % slower there and were left.

    Args:
        n: outputs; ``F`` where gated.
        k: channels.
        rows: rows of ``x``.
        dtype: of ``x`` and the weight.
        gated: whether a program reads gate and up rows.
        shared_bytes: what a program may have of shared memory; with less than Hopper's, fewer tiles are in flight.
    """
    matrices = 2 if gated else 1
    outputs = n * matrices
    narrow = min(outputs, k) <= NARROW and outputs < 65_536
    if not 1 <= rows <= (NARROW_ROWS if narrow else MAX_ROWS) or dtype == torch.float32 or k < 1:
        return None
    if rows == 1:
        if outputs >= 65_536 and k < 8192:
            weight_rows, block_k = 8, min(4096, _tile(k))
            warps = max(2, block_k // 512)
        elif k >= 8192:
            # All programs at once: a few more than one a multiprocessor would take as long as two.
            weight_rows, block_k, warps = (8, 2048, 8) if outputs >= 16 * MULTIPROCESSORS else (4, 2048, 8)
        else:
            weight_rows, block_k = 4, _tile(k) if k <= 2048 else 512
            warps = max(2, block_k // 512)
        return Launch("fma", weight_rows // matrices, block_k, warps, max_registers=128)
    block_rows, parts, splits = 8 if rows <= 8 else 16 if rows <= 16 else 32 if rows <= 32 else 64, 1, 1
    if rows > MAX_ROWS:
        # ``x`` is as large as a tile of weight. Tiles of so many rows leave half of the multiprocessors idle unless
        # programs share the channels; of gate and up two programs share a multiprocessor.
        if outputs >= 16_384:
            weight_rows, block_k = 128, 64
        elif k >= 4096 and not gated:
            weight_rows, block_k = 64, 128
            splits = max(1, min(8, MULTIPROCESSORS // -(-n // weight_rows)))
        elif rows > 32 and not gated:
            return None
        else:
            weight_rows, block_k = 64, 128
    elif outputs >= 16_384:
        weight_rows, block_k = 128, 128
    elif narrow and rows > 8 and k >= 4096:
        weight_rows, block_k = 64, 128
        splits = max(1, min(8, MULTIPROCESSORS // -(-n // weight_rows)))
    else:
        weight_rows, block_k, parts = (32, 512, 4) if rows <= 8 or k >= 8192 else (64, 256, 1)
    stages = max(2, min(4, shared_bytes // ((weight_rows + block_rows) * block_k * dtype.itemsize)))
    return Launch("dot", weight_rows // matrices, block_k, 4, stages, parts, block_rows, splits)


def _tile(k: int) -> int:
    """Return the channels of a tile that holds a whole row."""
    return max(512, 1 << (k - 1).bit_length())


def fuses_norm(k: int, rows: int, dtype: torch.dtype) -> bool:
    """Return whether a projection norms its input itself: one row whose channels are one tile.

    A norm of its own is a launch of one program between two that fill the device: of a layer of 1,536 channels two of
    them took 12 of 62 us on an H200.
    """
    return rows == 1 and k <= NORM_CHANNELS and dtype in (torch.float16, torch.bfloat16)


def norm_launch(k: int, gated: bool) -> Launch:
    """Return settings of a projection that norms its one row: 512 channels a warp, eight weight rows a program."""
    # Each reads three more rows, from L2: with four of weight a step of Llama-3-8B's shape took 5 to 10 % longer.
    block_k = _tile(k)
    return Launch("fma", 4 if gated else 8, block_k, max(2, block_k // 512), max_registers=128)
