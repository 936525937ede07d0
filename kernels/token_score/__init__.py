"""Attention logits and probabilities of one query row over the cache."""

from torch import Tensor

from longdecode.kernels.dispatch import op
from longdecode.kernels.token_score import naive

__all__ = ["token_logits", "token_probabilities"]

token_logits = op(naive.token_logits)


def token_probabilities(q: Tensor, k: Tensor, lengths: Tensor, *, scale: float | None = None) -> Tensor:
    """Return the softmax of ``token_logits`` over each row's tokens; see ``naive.token_probabilities``."""
    return token_logits(q, k, lengths, scale=scale).softmax(dim=-1)
