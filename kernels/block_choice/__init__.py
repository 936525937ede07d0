"""Blocks of a decode step: the forced ones, the best by pooled keys, then by importance."""

from torch import Tensor

from longdecode.kernels.block_choice import naive
from longdecode.kernels.block_choice.naive import BlockShares, choose_ranked
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.pooled_keys.naive import Pooling

__all__ = ["BlockShares", "choose_blocks", "choose_ranked"]


def choose_blocks(
    q: Tensor, means: Tensor, windows: Tensor, in_use: Tensor, importance: Tensor | None, shares: BlockShares,
    pooling: Pooling, block_size: int, room: int, normaliser: str = "exact",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the blocks that each KV head reads, the newest first; see ``naive.choose_blocks``.

    With the exact normaliser, and where a list fits one program, three launches do it.
    """
    if use_triton(q) and normaliser == "exact":
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.block_choice.gpu import MAX_ROOM, choose_blocks_gpu

        if room <= MAX_ROOM:
            return choose_blocks_gpu(q, means, windows, in_use, importance, shares, pooling, block_size, room)
    return naive.choose_blocks(
        q, means, windows, in_use, importance, shares, pooling, block_size, room, normaliser
    )  # fmt: skip
