"""The highest attention logit in each block of tokens."""

from torch import Tensor

from longdecode.kernels.block_max_score import naive
from longdecode.kernels.dispatch import use_triton

__all__ = ["block_max_score"]


def block_max_score(
    q: Tensor, k: Tensor, lengths: Tensor, *, block_size: int, scale: float | None = None, group: str | None = None
) -> Tensor:
    """Largest logit of each block, after the reduction over the group; see ``naive.block_max_score``.

    The Triton path takes blocks of up to 256 tokens and raises ValueError beyond.
    """
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.token_score.gpu import block_max_score_gpu

        return block_max_score_gpu(q, k, lengths, block_size=block_size, scale=scale, group=group)
    return naive.block_max_score(q, k, lengths, block_size=block_size, scale=scale, group=group)
