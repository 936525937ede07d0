"""Query-independent importance of tokens and blocks, from the values alone."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.importance import naive
from longdecode.kernels.importance.naive import (
    FORMS,
    Importance,
    ImportanceWeights,
    block_importance,
    ranked,
    token_importance,
)
from longdecode.kernels.pooled_keys.naive import Pooling

__all__ = [
    "FORMS",
    "Importance",
    "ImportanceWeights",
    "append_importance",
    "block_importance",
    "ranked",
    "token_importance",
]


def append_importance(
    importance: Importance, v: Tensor, weights: ImportanceWeights, lengths: Tensor, pooling: Pooling, block_size: int
) -> None:
    """Store the newest tokens' importance and raise their blocks; see ``naive.append_importance``."""
    if use_triton(v):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.importance.gpu import append_importance_gpu

        return append_importance_gpu(importance, v, weights, lengths, pooling, block_size)
    return naive.append_importance(importance, v, weights, lengths, pooling, block_size)
