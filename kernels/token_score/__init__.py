"""Attention logits and probabilities of one query row over the cache."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.token_score import naive

__all__ = ["token_logits", "token_probabilities"]


def token_logits(
    q: Tensor, k: Tensor, lengths: Tensor, *, scale: float | None = None, group: str | None = None
) -> Tensor:
    """Return attention logits of one query row, ``scale * q_h . k_i``; see ``naive.token_logits``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.token_score.gpu import token_logits_gpu

        return token_logits_gpu(q, k, lengths, scale=scale, group=group)
    return naive.token_logits(q, k, lengths, scale=scale, group=group)


def token_probabilities(q: Tensor, k: Tensor, lengths: Tensor, *, scale: float | None = None) -> Tensor:
    """Return the softmax of ``token_logits`` over each row's tokens; see ``naive.token_probabilities``."""
    return token_logits(q, k, lengths, scale=scale).softmax(dim=-1)
