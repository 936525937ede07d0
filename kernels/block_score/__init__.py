"""Scores of blocks from logits over pooled keys."""

import torch
from torch import Tensor

from longdecode.kernels.block_score import naive
from longdecode.kernels.block_score.naive import newest_first, normaliser
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.pooled_keys.naive import Pooling

__all__ = ["block_scores", "newest_first", "normaliser"]


def block_scores(
    logits: Tensor, lse: Tensor, blocks: Tensor, kv_heads: int, pooling: Pooling, block_size: int, room: int
) -> Tensor:
    """Return the largest summed probability among the windows that touch a block; see ``naive.block_scores``."""
    if use_triton(logits) and logits.dtype == torch.float32:
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.block_score.gpu import block_scores_gpu

        return block_scores_gpu(logits, lse, blocks, kv_heads, pooling, block_size, room)
    return naive.block_scores(logits, lse, blocks, kv_heads, pooling, block_size, room)
