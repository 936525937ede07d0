"""How the projection kernels are launched: settings, the rule that picks them, and those worth a trial on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

MAX_ROWS = 16
"""Rows up to which a weight is worth streaming by hand; beyond, the projection belongs to cuBLAS."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of one projection; results differ between them by float rounding alone.

    ``block_n`` weight rows (as many of gate and of up, where gated) and ``block_k`` channels make a tile, which
    ``num_warps`` warps of a program share. Body ``fma`` multiplies in float32 registers, one row of ``x`` a program:
    for one row. Body ``dot`` uses tensor cores for all rows; its warps divide a tile's channels in ``k_parts``.
    ``num_stages`` tiles are in flight through shared memory; with 1 they go straight to registers, of which a thread
    has ``max_registers`` (the compiler's choice where ``None``).

    ``launch_pdl`` starts the kernel before the one ahead of it has ended (programmatic dependent launch): it asks for
    the first ``prefetch`` tiles of its weight to be brought to L2, which no kernel writes, then waits for all that
    came before. See ``gpu.py`` for why that is safe.
    """

    body: Literal["fma", "dot"]
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int = 1
    k_parts: int = 1
    max_registers: int | None = None
    eviction: str = "evict_first"
    launch_pdl: bool = False
    prefetch: int = 1


def choose_launch(n: int, k: int, rows: int, dtype: torch.dtype, gated: bool = False) -> Launch | None:
    """Settings by shape, or ``None`` where torch serves: float32 and more rows than ``MAX_ROWS``.

    One row: a tile is eight weight rows of 1,024 channels, 8 loads of 16 bytes a thread; at 80 registers a thread six
    programs fit a multiprocessor, so the 4,096- and 6,144-row projections of Llama-3-8B run in one wave of 132 x 6.
    More rows: see ``Launch``.

    Args:
        n: outputs; ``F`` where gated.
        k: channels.
        rows: rows of ``x``.
        dtype: of ``x`` and the weight.
        gated: whether a program reads gate and up rows.
    """
    if rows > MAX_ROWS or dtype == torch.float32 or k < 1:
        return None
    if rows == 1:
        return Launch("fma", block_n=4 if gated else 8, block_k=1024, num_warps=4)
    return Launch("dot", block_n=16, block_k=512, num_warps=4, num_stages=4, k_parts=4)


def candidates(n: int, k: int, rows: int, gated: bool = False) -> list[Launch]:
    """Settings worth a trial at a shape; see ``choose_launch`` for the arguments."""
    found = []
    for weight_rows in (4, 8, 16):
        block_n = weight_rows // (2 if gated else 1)
        for block_k, num_warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8)):
            if rows == 1 and weight_rows * block_k <= 64 * 32 * num_warps * 2 and block_k < 2 * k:
                found.append(Launch("fma", block_n, block_k, num_warps))
    return found
