"""Block scores from logits over pooled keys, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.importance.naive import touching_max
from longdecode.kernels.pooled_keys.naive import Pooling


def block_scores(
    logits: Tensor, lse: Tensor, blocks: Tensor, kv_heads: int, pooling: Pooling, block_size: int, room: int
) -> Tensor:
    """Return ``Q_B = max_{m touches B} sum_g exp(l_{g,m} - lse_g)``, blocks from the newest back.

    The sum runs over the query heads of a KV head: probabilities are added, not logits. A block that no complete
    window touches scores 0. Moves ``B * Hq * M`` float32 in.

    Args:
        logits: ``[B, Hq, M]`` float32 or float64, minus infinity for windows that are not complete.
        lse: ``[B, Hq]``, the normaliser; minus infinity where there is no window.
        blocks: ``[B]`` int64, blocks in use; entry ``i`` of a list is block ``blocks - 1 - i``.
        kv_heads: ``Hkv``.
        pooling: windows.
        block_size: tokens in a block.
        room: entries of a list; those at or past ``blocks`` are 0.

    Returns:
        ``[B, Hkv, room]`` in the logits' dtype.

    Source: InfLLM-V2 and NOSA (thunlp/NOSA 94d5f75): softmax over pooled keys, sum over the group, five-window max.
    """
    weights = torch.exp(logits - torch.where(lse == float("-inf"), 0.0, lse)[..., None])
    shared = weights.unflatten(1, (kv_heads, -1)).sum(dim=2)
    return newest_first(touching_max(shared, room, pooling, block_size, fill=0.0), blocks, 0.0)


def newest_first(x: Tensor, blocks: Tensor, fill: float) -> Tensor:
    """Return ``x`` ``[B, H, N]`` from entry ``blocks - 1`` back, ``fill`` past the first."""
    place = blocks[:, None] - 1 - torch.arange(x.shape[2], device=x.device)
    turned = x.gather(2, place.clamp(0, x.shape[2] - 1)[:, None].expand(x.shape))
    return torch.where((place >= 0)[:, None], turned, fill)


def normaliser(logits: Tensor, windows: Tensor, pooling: Pooling, kind: str) -> Tensor:
    """Return the logarithm of what the exponentials of the logits are divided by, ``[B, Hq]``.

    ``exact`` is that of the softmax. ``coarse`` sums over windows of four times the size and stride instead: the key of
    such a window is the mean of four disjoint windows' keys, so that its logit is the mean of theirs. No correction for
    the smaller number follows. Rows too short for a coarse window get the exact one.

    Args:
        logits: ``[B, Hq, M]``, minus infinity at or past ``windows``.
        windows: ``[B]`` int64, complete windows.
        pooling: windows.
        kind: ``exact`` or ``coarse``.

    Source: OpenBMB/infllmv2_cuda_impl, tests of stage 1: normaliser from keys pooled by 128 every 64.
    """
    exact = torch.logsumexp(logits, dim=-1)
    reach = 3 * pooling.overlap
    starts = torch.arange(0, max(0, logits.shape[-1] - reach), 4, device=logits.device)
    if kind == "exact" or not len(starts):
        return exact
    steps = torch.arange(0, reach + 1, pooling.overlap, device=logits.device)
    coarse = logits[..., starts[:, None] + steps].mean(dim=-1)
    some = (windows > reach)[:, None]
    return torch.where(some, torch.logsumexp(coarse, dim=-1), exact)
