"""Attention over blocks in slots, in plain torch."""

from __future__ import annotations

from torch import Tensor

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
    kv_tokens_read: Tensor | None = None,
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
        bias: ``[B, Hkv, S]``, added to the scaled scores of the list's tokens (natural logarithm).
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over lists, are added.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32 (float64 for float64).

    Raises:
        ValueError: shapes do not fit.
    """
    return sparse_decode_attention(
        q, k, v, slots, counts, block_size=block_size, kv_lengths=kv_lengths, bias=bias, kv_tokens_read=kv_tokens_read
    )
