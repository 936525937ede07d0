"""How one query row scores the pooled key of each block."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.pooled_score import naive

__all__ = ["pooled_score"]


def pooled_score(q: Tensor, pooled: Tensor, blocks: Tensor, *, group: str | None = None) -> Tensor:
    """``q_h . p_j`` for the pooled key of every block in use; see ``naive.pooled_score``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.token_score.gpu import token_logits_gpu

        # Pooled keys are read as tokens are.
        return token_logits_gpu(q, pooled, blocks, scale=1.0, group=group)
    return naive.pooled_score(q, pooled, blocks, group=group)
