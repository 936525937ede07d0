"""Block-sparse attention with a gradient, in plain torch: all logits, those of unread tokens masked."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator


def sparse_training_attention(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, block_size: int, bias: Tensor | None, scale: float
) -> Tensor:
    """Return causal attention over the blocks that each query reads, differentiable in all but the choice.

    ``out_ht = sum_{i in S_ht} softmax(scale q_ht k_i + bias_i) v_i`` with
    ``S_ht = {i <= t : read_{h, t, i // block_size}}``.

    Args:
        q: ``[B, Hq, T, D]``.
        k: ``[B, Hkv, T, D]``.
        v: ``[B, Hkv, T, D]``.
        read: ``[B, Hkv, T, N]`` bool; every query reads a token at or before its own.
        block_size: tokens in a block.
        bias: ``[B, Hkv, T]`` float32 added to the scaled logits, or ``None``.
        scale: factor on the products of queries and keys.

    Returns:
        ``[B, Hq, T, D]`` in ``q``'s dtype.

    Source: NOSA (arXiv 2510.13602), section 3: selection without a gradient, the bias learned through the softmax.
    """
    (tokens, dtype), group = (q.shape[2], accumulator(q.dtype)), q.shape[1] // k.shape[1]
    listed = read.repeat_interleave(block_size, dim=3)[..., :tokens].tril()
    keys, values, listed = (x.repeat_interleave(group, dim=1) for x in (k.to(dtype), v.to(dtype), listed))
    logits = q.to(dtype) @ keys.transpose(-1, -2) * scale
    if bias is not None:
        logits = logits + bias.to(dtype).repeat_interleave(group, dim=1)[:, :, None]
    weights = torch.where(listed, logits, float("-inf")).softmax(dim=-1)
    return (weights @ values).to(q.dtype)
