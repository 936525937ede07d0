"""Appending to pooled keys as a Triton kernel: one program a row and KV head."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.pooled_keys.naive import PooledKeys, Pooling


@triton.jit
def append_pooled_key_kernel(
    p_k, p_slots, p_lengths, p_means, p_ring, k_batch, k_head, k_token, k_dim, m_batch, m_head, m_window,
    r_batch, r_head, r_place, windows,
    WINDOW: tl.constexpr, STRIDE: tl.constexpr, BLOCK_WINDOW: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """``Kbar_m = sum_{j < WINDOW} k_{STRIDE m + j} / WINDOW`` of the window that the newest key completes.

    Grid ``(H, B)``. ``p_k`` ``[B, H, S, D]``, ``p_means`` ``[B, H, M, D]`` and ``p_ring`` ``[B, H, WINDOW, D]`` of one
    dtype, ``D`` contiguous in the last two; ``p_slots`` and ``p_lengths`` ``[B]`` int64. Moves ``2 * D`` elements a
    program, and ``WINDOW`` keys more where a window is complete.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    o_dim = tl.arange(0, BLOCK_DIM)
    inside = o_dim < DIM
    length = tl.load(p_lengths + i_batch)
    slot = tl.load(p_slots + i_batch)
    b_k = tl.load(p_k + i_batch * k_batch + i_head * k_head + slot * k_token + o_dim * k_dim, mask=inside, other=0.0)
    place = (length - 1) % WINDOW
    p_ring += i_batch * r_batch + i_head * r_head
    tl.store(p_ring + place * r_place + o_dim, b_k, mask=inside)
    since = length - WINDOW
    window = since // STRIDE
    if (since >= 0) & (since % STRIDE == 0) & (window < windows):
        o_place = tl.arange(0, BLOCK_WINDOW)
        # The slot just stored is not read back: another thread may have written it.
        others = (o_place < WINDOW) & (o_place != place)
        o_ring = o_place[:, None].to(tl.int64) * r_place + o_dim[None, :]
        b_ring = tl.load(p_ring + o_ring, mask=others[:, None] & inside[None, :], other=0.0).to(tl.float32)
        b_mean = (tl.sum(b_ring, 0) + b_k.to(tl.float32)) / WINDOW
        p_mean = p_means + i_batch * m_batch + i_head * m_head + window * m_window + o_dim
        tl.store(p_mean, b_mean.to(p_means.dtype.element_ty), mask=inside)


def append_pooled_key_gpu(pooled: PooledKeys, k: Tensor, slots: Tensor, lengths: Tensor, pooling: Pooling) -> None:
    """Append as in ``naive.append_pooled_key``, in one launch.

    Args:
        pooled: means and ring, ``D`` contiguous.
        k: ``[B, H, S, D]`` in their dtype, any strides.
        slots: ``[B]`` int64.
        lengths: ``[B]`` int64.
        pooling: size and stride of the windows.
    """
    means, ring = pooled
    batch, heads, _, dim = ring.shape
    with torch.cuda.device_of(k):
        append_pooled_key_kernel[(heads, batch)](
            k, slots.contiguous(), lengths.contiguous(), means, ring, *k.stride(), *means.stride()[:3],
            *ring.stride()[:3], means.shape[2],
            WINDOW=pooling.window, STRIDE=pooling.stride, BLOCK_WINDOW=triton.next_power_of_2(pooling.window),
            DIM=dim, BLOCK_DIM=triton.next_power_of_2(dim), num_warps=4,
        )  # fmt: skip
