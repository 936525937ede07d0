"""Scores that sparse decode attention leaves on its way: group means of a tile's logits, the best of each block."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def store_scores(
    p_row, score_entry, b_scores, b_token, b_best, i_tile, last, length,
    ROWS: tl.constexpr, SCORE_BLOCK: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    """Write ``max_{i in block} mean_r(b_scores_{r i})`` of the blocks of a tile of consecutive tokens.

    ``b_scores`` ``[R, N]`` float32 in base 2, whose padding rows are zero; ``b_token`` ``[N]``, negative where the row
    of the cache has ended. A block of several tiles gathers in ``b_best`` ``[N]``, which is returned, and is written
    at its ``last`` tile, or the last one of the program. Moves one float32 a block.
    """
    b_mean = tl.sum(b_scores, 0) * (_LN2 / ROWS)
    b_mean = tl.where(b_token >= 0, b_mean, float("-inf"))
    if SCORE_BLOCK == 1:
        o_entry = i_tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
        tl.store(p_row + o_entry.to(tl.int64) * score_entry, b_mean, mask=o_entry < length)
    elif SCORE_BLOCK < BLOCK_TOKENS:
        BLOCKS: tl.constexpr = BLOCK_TOKENS // SCORE_BLOCK
        o_entry = i_tile * BLOCKS + tl.arange(0, BLOCKS)
        b_most = tl.max(tl.reshape(b_mean, [BLOCKS, SCORE_BLOCK]), 1)
        tl.store(p_row + o_entry.to(tl.int64) * score_entry, b_most, mask=o_entry * SCORE_BLOCK < length)
    elif SCORE_BLOCK == BLOCK_TOKENS:
        # A row without tokens has a tile too, and no block.
        tl.store(p_row + tl.cast(i_tile, tl.int64) * score_entry, tl.max(b_mean, 0), mask=length > 0)
    else:
        TILES: tl.constexpr = SCORE_BLOCK // BLOCK_TOKENS
        b_best = tl.maximum(b_best, b_mean)
        if (i_tile % TILES == TILES - 1) | last:
            tl.store(p_row + tl.cast(i_tile // TILES, tl.int64) * score_entry, tl.max(b_best, 0))
            b_best = tl.full([BLOCK_TOKENS], float("-inf"), dtype=tl.float32)
    return b_best
