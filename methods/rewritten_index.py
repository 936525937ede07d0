"""Bring what block selection keeps of tokens up to date after some were written over, as a verified draft's are."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.importance import Importance, ImportanceWeights, block_importance, token_importance
from longdecode.kernels.pooled_keys import PooledKeys, Pooling, pool_means


def renew_pooled_keys(
    pooled: PooledKeys, k: Tensor, starts: Tensor, width: int, lengths: Tensor, pooling: Pooling
) -> None:
    """Pool anew what the slots ``starts .. starts + width - 1`` touch, in place; the result is a build from scratch's.

    Moves ``width`` keys and two windows of them; nothing waits for the device.

    Args:
        pooled: of one layer.
        k: ``[B, H, S, D]``, slots in order of position.
        starts: ``[B]`` int64, first slots that changed.
        width: slots that may have changed.
        lengths: ``[B]`` int64, tokens that are left.
        pooling: size and stride of the windows.
    """
    (window, stride), room = pooling, pooled.means.shape[2]
    newest = lengths[:, None] - 1
    latest = newest - (newest - torch.arange(window, device=k.device)).remainder(window)
    pooled.ring.copy_(_at(k, latest.clamp(0, k.shape[2] - 1)))
    # From the first window that ends behind the first slot on, as many as touch the others; those that are not complete
    # may hold anything.
    count = min((width + window) // stride + 1, room)
    first = (torch.div(starts - window, stride, rounding_mode="floor") + 1).clamp(0, room - count)
    span = torch.arange((count - 1) * stride + window, device=k.device)
    tokens = _at(k, (first[:, None] * stride + span).clamp(max=k.shape[2] - 1))
    numbers = first[:, None] + torch.arange(count, device=k.device)
    means = pool_means(tokens, pooling, count).to(k.dtype)
    pooled.means.scatter_(2, numbers[:, None, :, None].expand(*means.shape), means)


def renew_importance(
    importance: Importance, v: Tensor, weights: ImportanceWeights, starts: Tensor, width: int, lengths: Tensor,
    pooling: Pooling | None, block_size: int,
) -> None:  # fmt: skip
    """Weigh the tokens in ``starts .. starts + width - 1`` anew, in place, and the blocks by what all tokens weigh.

    Args:
        importance: of one layer; without ``pooling`` its blocks are left alone.
        v: ``[B, Hkv, S, D]``, slots in order of position.
        weights: of the layer.
        starts: ``[B]`` int64, first slots that changed.
        width: slots that may have changed.
        lengths: ``[B]`` int64, tokens that are left.
        pooling: windows of tokens.
        block_size: tokens in a block.
    """
    tokens, blocks = importance
    # Slots past the end hold anything; a row that ends early names its last slot again, with the same values.
    places = (starts[:, None] + torch.arange(width, device=v.device)).clamp(max=tokens.shape[2] - 1)
    fresh = token_importance(_at(v, places.clamp(max=v.shape[2] - 1)), weights).to(tokens.dtype)
    tokens.scatter_(2, places[:, None].expand(*fresh.shape), fresh)
    if pooling is not None:
        blocks.copy_(block_importance(tokens, lengths, pooling, block_size))


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Return what stands in the places ``[B, N]`` of ``x`` ``[B, H, S, D]``, ``[B, H, N, D]``."""
    return x.gather(2, places[:, None, :, None].expand(*x.shape[:2], places.shape[1], x.shape[3]))
