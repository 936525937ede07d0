"""Block scores as a Triton kernel: softmax weights, group sum and window maximum in one pass."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.pooled_keys.naive import Pooling

_TILE = 128


@triton.jit
def block_score_kernel(
    p_logits, p_lse, p_blocks, p_out, kv_heads, windows, room,
    GROUP: tl.constexpr, STEP: tl.constexpr, BEFORE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``Q_B = max_{m touches B} sum_g exp(l_{g,m} - lse_g)`` of a tile of blocks, the newest first.

    Grid ``(room / TILE, Hkv, B)``. ``p_logits`` ``[B, Hq, M]`` and ``p_lse`` ``[B, Hq]`` float32, contiguous;
    ``p_blocks`` ``[B]`` int64; ``p_out`` ``[B, Hkv, room]`` float32. ``STEP`` windows begin in a block and ``BEFORE``
    reach into it from before. Each logit is read ``(STEP + BEFORE) / STEP`` times, mostly from cache.
    """
    i_head = tl.program_id(1)
    i_batch = tl.program_id(2).to(tl.int64)
    o_entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    b_block = tl.load(p_blocks + i_batch) - 1 - o_entry
    i_list = i_batch * kv_heads + i_head
    p_logits += i_list * GROUP * windows
    b_best = tl.zeros([TILE], dtype=tl.float32)
    for i_near in tl.static_range(0, STEP + BEFORE):
        b_window = b_block * STEP + i_near - BEFORE
        exists = (b_block >= 0) & (b_window >= 0) & (b_window < windows)
        b_sum = tl.zeros([TILE], dtype=tl.float32)
        for i_group in range(GROUP):
            lse = tl.load(p_lse + i_list * GROUP + i_group)
            lse = tl.where(lse == float("-inf"), 0.0, lse)
            b_logit = tl.load(p_logits + i_group * windows + b_window, mask=exists, other=float("-inf"))
            b_sum += tl.exp(b_logit - lse)
        b_best = tl.maximum(b_best, b_sum)
    tl.store(p_out + i_list * room + o_entry, b_best, mask=o_entry < room)


def block_scores_gpu(
    logits: Tensor, lse: Tensor, blocks: Tensor, kv_heads: int, pooling: Pooling, block_size: int, room: int
) -> Tensor:
    """Score blocks as in ``naive.block_scores``, in one launch.

    Args:
        logits: ``[B, Hq, M]`` float32.
        lse: ``[B, Hq]`` float32.
        blocks: ``[B]`` int64.
        kv_heads: ``Hkv``.
        pooling: windows.
        block_size: tokens in a block.
        room: entries of a list.
    """
    batch, heads, windows = logits.shape
    out = torch.empty(batch, kv_heads, room, dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):
        block_score_kernel[(triton.cdiv(room, _TILE), kv_heads, batch)](
            logits.contiguous(), lse.contiguous(), blocks.contiguous(), out, kv_heads, windows, room,
            GROUP=heads // kv_heads, STEP=block_size // pooling.stride, BEFORE=pooling.overlap - 1, TILE=_TILE,
            num_warps=4,
        )  # fmt: skip
    return out
