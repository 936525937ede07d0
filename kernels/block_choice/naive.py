"""Choice of blocks as a chain of the ops it consists of."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from longdecode.kernels.block_score import block_scores, newest_first, normaliser
from longdecode.kernels.importance.naive import ranked
from longdecode.kernels.pooled_keys.naive import Pooling
from longdecode.kernels.token_score import token_logits
from longdecode.kernels.topk_select import topk_select


class BlockShares(NamedTuple):
    """Blocks of a list: first, latest, by the query, by importance; there are some of the first three kinds."""

    sink: int
    window: int
    by_query: int
    by_importance: int


def choose_blocks(
    q: Tensor, means: Tensor, windows: Tensor, in_use: Tensor, importance: Tensor | None, shares: BlockShares,
    pooling: Pooling, block_size: int, room: int, kind: str = "exact",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Choose by ``Q_B = max_{m touches B} sum_g softmax_m(q_g . Kbar_m / sqrt(D))``, then by importance in bfloat16.

    Moves the pooled keys of complete windows in, and twice a float32 a window and query head.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype.
        means: ``[B, Hkv, M, D]``, pooled keys; those at or past ``windows`` may hold anything.
        windows: ``[B]`` int64, complete windows.
        in_use: ``[B]`` int64, blocks of each row, at most ``room``.
        importance: ``[B, Hkv, room]`` in order of position, no NaN before ``in_use``; ``None`` where the query decides.
        shares: how many of each kind.
        pooling: windows.
        block_size: tokens in a block.
        room: blocks that a row may reach.
        kind: what weights are divided by, see ``block_score.normaliser``.

    Returns:
        Block numbers ``[B, Hkv, min(blocks, room)]`` int64, the newest first, and how many are valid, ``[B, Hkv]``
        int64.

    Source: NOSA (arXiv 2510.13602) and its released code (thunlp/NOSA 94d5f75).
    """
    logits = token_logits(q, means, windows)
    lse = normaliser(logits, windows, pooling, kind)
    scores = block_scores(logits, lse, in_use, means.shape[1], pooling, block_size, room)
    ranking = None if importance is None else newest_first(ranked(importance), in_use, float("-inf"))
    return choose_ranked(scores, ranking, in_use, shares)


def choose_ranked(
    query: Tensor, importance: Tensor | None, in_use: Tensor, shares: BlockShares
) -> tuple[Tensor, Tensor]:
    """Choose blocks: the forced ones and the best by query, then by importance among the others.

    Lists run from the newest block back, so that of equal scores the larger block number wins.

    Args:
        query: ``[B, H, N]``, finite.
        importance: ``[B, H, N]``, or ``None`` where the query decides alone.
        in_use: ``[B]`` int64, blocks of each row.
        shares: how many of each kind.

    Returns:
        Block numbers ``[B, H, min(blocks, N)]`` int64, the newest first, and how many of them are valid,
        ``[B, H]`` int64.

    Source: NOSA (arXiv 2510.13602) and its released code (thunlp/NOSA 94d5f75): the query's choice is set to
    plus infinity in the ranking by importance.
    """

    def forced_and_best(scores: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
        return topk_select(scores, blocks, in_use, keep_first=shares.window, keep_last=shares.sink)

    places, counts = forced_and_best(query, shares.sink + shares.window + shares.by_query)
    if importance is not None:
        # Entries past the count name place 0, the newest block, which is forced anyway.
        marked = importance.scatter(2, places, float("inf"))
        places, counts = forced_and_best(marked, sum(shares))
    return (in_use[:, None, None] - 1 - places).clamp(min=0), counts
