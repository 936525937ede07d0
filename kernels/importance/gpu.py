"""Appending importances as a Triton kernel: one program a row and KV head."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.importance.naive import Importance, ImportanceWeights
from longdecode.kernels.pooled_keys.naive import Pooling


@triton.jit
def append_importance_kernel(
    p_v, p_delta, p_scale, p_lengths, p_tokens, p_blocks, v_batch, v_head, v_dim, t_batch, t_head, b_batch, b_head,
    size, blocks,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK_WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """``e = A_h softplus(Delta_h . v)`` of the newest token; ``E_B = max(E_B, mean e)`` where it completes a window.

    The other forms of ``e`` are those of ``naive.token_importance``.

    Grid ``(H, B)``. ``p_v`` ``[B, H, 1, D]`` float32, float16 or bfloat16; ``p_delta`` ``[H, H * D]`` and ``p_scale``
    ``[H]`` float32, contiguous; ``p_lengths`` ``[B]`` int64; ``p_tokens`` ``[B, H, S]`` and ``p_blocks`` ``[B, H, N]``
    float32, the last dimension contiguous. Moves ``2 * H * D`` elements a program.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    o_dim = tl.arange(0, BLOCK_DIM)
    length = tl.load(p_lengths + i_batch)
    b_sum = tl.zeros([BLOCK_DIM], dtype=tl.float32)
    for i_other in tl.static_range(0, HEADS):
        p_value = p_v + i_batch * v_batch + i_other * v_head + o_dim * v_dim
        b_v = tl.load(p_value, mask=o_dim < DIM, other=0.0).to(tl.float32)
        p_row = p_delta + (i_head * HEADS + i_other) * DIM + o_dim
        b_sum += b_v * tl.load(p_row, mask=o_dim < DIM, other=0.0)
    x = tl.sum(b_sum, 0)
    if FORM == "s_dma":  # noqa: SIM108 - known when compiling
        raised = 1.0 / (1.0 + tl.exp(-x))
    else:
        raised = tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
    own = raised * tl.load(p_scale + i_head)
    if FORM == "dma":
        own = tl.exp(own)
    p_tokens += i_batch * t_batch + i_head * t_head
    p_blocks += i_batch * b_batch + i_head * b_head
    place = tl.minimum(length - 1, size - 1)
    tl.store(p_tokens + place, own)
    since = length - WINDOW
    if (since >= 0) & (since % STRIDE == 0):
        o_token = tl.arange(0, BLOCK_WINDOW)
        b_place = since + o_token
        others = (o_token < WINDOW) & (b_place < place)
        mean = (tl.sum(tl.load(p_tokens + b_place, mask=others, other=0.0), 0) + own) / WINDOW
        for i_block in range(since // BLOCK_SIZE, (length - 1) // BLOCK_SIZE + 1):
            if i_block < blocks:
                tl.store(p_blocks + i_block, tl.maximum(tl.load(p_blocks + i_block), mean))


def append_importance_gpu(
    importance: Importance, v: Tensor, weights: ImportanceWeights, lengths: Tensor, pooling: Pooling, block_size: int
) -> None:
    """Append as in ``naive.append_importance``, in one launch.

    Args:
        importance: float32, last dimensions contiguous.
        v: ``[B, H, 1, D]``, any strides.
        weights: float32, contiguous.
        lengths: ``[B]`` int64.
        pooling: windows.
        block_size: tokens in a block.
    """
    tokens, blocks = importance
    batch, heads, _, dim = v.shape
    with torch.cuda.device_of(v):
        append_importance_kernel[(heads, batch)](
            v, weights.delta, weights.scale, lengths.contiguous(), tokens, blocks,
            v.stride(0), v.stride(1), v.stride(3), *tokens.stride()[:2], *blocks.stride()[:2],
            tokens.shape[2], blocks.shape[2],
            HEADS=heads, DIM=dim, BLOCK_DIM=triton.next_power_of_2(dim), WINDOW=pooling.window, STRIDE=pooling.stride,
            BLOCK_WINDOW=triton.next_power_of_2(pooling.window), BLOCK_SIZE=block_size, FORM=weights.form,
            num_warps=4,
        )  # fmt: skip
