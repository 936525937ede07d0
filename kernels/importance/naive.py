"""Query-independent importance of tokens from their values, in plain torch, by token and by block."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from longdecode.kernels.layout import accumulator
from longdecode.kernels.pooled_keys.naive import Pooling, pool_means

FORMS = ("ed_dma", "dma", "s_dma")


class ImportanceWeights(NamedTuple):
    """Importance heads of one layer: ``delta`` ``[Hkv, Hkv * D]``, ``scale`` ``[Hkv]``, and one of ``FORMS``."""

    delta: Tensor
    scale: Tensor
    form: str = "ed_dma"


class Importance(NamedTuple):
    """Importance by token, ``tokens`` ``[B, H, S]``, and by block, ``blocks`` ``[B, H, N]`` in order of position.

    Both are float32 (float64 for float64 models). A block without a complete window has minus infinity. Tokens at or
    past a row's length may hold anything.
    """

    tokens: Tensor
    blocks: Tensor


def token_importance(v: Tensor, weights: ImportanceWeights) -> Tensor:
    """Return ``e_{j,h} = A_h softplus(Delta_h . v_j)``; ``v_j`` joins the values of all KV heads of token ``j``.

    That is the form ``ed_dma``. ``dma`` is its exponential, ``s_dma`` has a sigmoid in place of softplus.

    Args:
        v: ``[B, Hkv, T, D]``, any float dtype.
        weights: of the layer.

    Returns:
        ``[B, Hkv, T]`` in float32 (float64 for float64).

    Source: NOSA (arXiv 2510.13602), ED-DMA, and its released code (thunlp/NOSA 94d5f75): no exponential here, it
    appears in the softmax alone.
    """
    dtype = accumulator(v.dtype)
    joined = v.transpose(1, 2).flatten(2).to(dtype)
    raised = joined @ weights.delta.to(dtype).T
    raised = (raised.sigmoid() if weights.form == "s_dma" else softplus(raised)) * weights.scale.to(dtype)
    return (raised.exp() if weights.form == "dma" else raised).transpose(1, 2)


def ranked(importance: Tensor) -> Tensor:
    """Round importances to bfloat16, as they are compared: equal values must rank as equal whatever computed them.

    A text repeats its tokens, whose importances differ in the last bits where a prompt's product and a step's kernel
    sum in another order; the rank would depend on it. The release stores importances in bfloat16.
    """
    return importance.to(torch.bfloat16).to(importance.dtype)


def block_importance(tokens: Tensor, lengths: Tensor, pooling: Pooling, block_size: int) -> Tensor:
    """Return for each block the largest mean importance of a complete window that touches it, ``[B, H, N]``.

    Args:
        tokens: ``[B, H, S]``.
        lengths: ``[B]`` int64, tokens of each row.
        pooling: windows; their stride divides the block size.
        block_size: tokens in a block; ``N = ceil(S / block_size)``.
    """
    room = pooling.room(tokens.shape[2])
    means = pool_means(tokens, pooling, room)
    complete = torch.arange(room, device=tokens.device) < pooling.complete(lengths)[:, None]
    means = torch.where(complete[:, None], means, float("-inf"))
    return touching_max(means, -(-tokens.shape[2] // block_size), pooling, block_size)


def touching_max(windows: Tensor, blocks: int, pooling: Pooling, block_size: int, fill: float = -torch.inf) -> Tensor:
    """Return the maximum over the windows ``[..., M]`` that touch each block, ``[..., blocks]``.

    Window ``m`` touches block ``B`` for ``m`` from ``B b / s - (w / s - 1)`` to ``(B + 1) b / s - 1``: five windows for
    blocks of 64, windows of 32 and a stride of 16. Windows that do not exist count as ``fill``.
    """
    step, before = block_size // pooling.stride, pooling.overlap - 1
    span = step + before
    padded = windows.new_full((*windows.shape[:-1], before + step * blocks), fill)
    within = min(windows.shape[-1], step * blocks)
    padded[..., before : before + within] = windows[..., :within]
    return padded.unfold(-1, span, step).amax(dim=-1)


def append_importance(
    importance: Importance, v: Tensor, weights: ImportanceWeights, lengths: Tensor, pooling: Pooling, block_size: int
) -> None:
    """Store the importance of each row's newest token, and raise the blocks that a window it completes touches.

    Args:
        importance: changed in place.
        v: ``[B, Hkv, 1, D]``, values of the newest tokens.
        weights: of the layer.
        lengths: ``[B]`` int64, tokens of each row, the newest included.
        pooling: windows.
        block_size: tokens in a block.
    """
    (tokens, blocks), (window, stride) = importance, pooling
    size = tokens.shape[2]
    place = (lengths - 1).clamp(max=size - 1).view(-1, 1, 1).expand(*tokens.shape[:2], 1)
    tokens.scatter_(2, place, token_importance(v, weights).to(tokens.dtype))
    since = lengths - window
    due = ((since >= 0) & (since.remainder(stride) == 0)).view(-1, 1, 1)
    span = since.clamp(min=0)[:, None] + torch.arange(window, device=tokens.device)
    span = span.clamp(max=size - 1)[:, None].expand(*tokens.shape[:2], window)
    mean = tokens.gather(2, span).mean(dim=2, keepdim=True)
    number = torch.arange(blocks.shape[2], device=blocks.device) * block_size
    touched = (number < lengths.view(-1, 1, 1)) & (number + block_size > since.view(-1, 1, 1))
    blocks.copy_(torch.where(due & touched, torch.maximum(blocks, mean), blocks))
