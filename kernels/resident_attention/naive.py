"""Attention over blocks in slots, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.block_residency.naive import Arrivals
from longdecode.kernels.sparse_decode_attention.naive import sparse_decode_attention


def resident_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    kv_lengths: Tensor,
    bias: Tensor | None = None,
    bias_blocks: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    arrivals: Arrivals | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention over the tokens of the listed blocks, see ``sparse_decode_attention``.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype.
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        v: ``[B, Hkv, S, D]``.
        slots: ``[B, Hkv, N]`` int64, where the listed blocks lie, in units of ``block_size`` tokens.
        counts: ``[B, Hkv]`` int64, 0 to ``N`` valid leading entries of each list.
        block_size: tokens in a block.
        kv_lengths: ``[B]`` int64, tokens from which on slots hold nothing.
        bias: ``[B, Hkv, S]``, added to the scaled scores of the list's tokens (natural logarithm); with
            ``bias_blocks`` ``[B, Hkv, M]``, in an order of its own.
        bias_blocks: ``[B, Hkv, N]`` int64, the block of ``bias`` that holds an entry's tokens.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over lists, are added.
        arrivals: blocks still on their way, where launches overlap: the op must then follow the copy at once, and each
            of its programs waits for its own blocks. The bits are the same with and without; plain torch waits for all.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32 (float64 for float64).

    Raises:
        ValueError: shapes do not fit.
    """
    if bias is not None and bias_blocks is not None:
        bias = _by_slot(bias, bias_blocks, slots, counts, block_size, k.shape[2])
    return sparse_decode_attention(
        q, k, v, slots, counts, block_size=block_size, kv_lengths=kv_lengths, bias=bias, kv_tokens_read=kv_tokens_read
    )


def _by_slot(
    bias: Tensor, bias_blocks: Tensor, slots: Tensor, counts: Tensor, block_size: int, capacity: int
) -> Tensor:
    """Return the bias of the listed blocks in the order of slots, ``[B, Hkv, S]``; 0 elsewhere."""
    listed = torch.arange(slots.shape[2], device=slots.device) < counts[..., None]
    inside = torch.arange(block_size, device=slots.device)
    source = (torch.where(listed, bias_blocks, 0)[..., None] * block_size + inside).clamp(max=bias.shape[2] - 1)
    # What is not listed goes behind the last slot, as does what a last, cut block has too many.
    target = (torch.where(listed, slots, capacity)[..., None] * block_size + inside).clamp(max=capacity)
    moved = torch.zeros(*bias.shape[:2], capacity + 1, dtype=bias.dtype, device=bias.device)
    return moved.scatter_(2, target.flatten(2), bias.gather(2, source.flatten(2)))[..., :capacity]
