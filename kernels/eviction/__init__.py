"""Eviction: after a step has read, score the stored tokens and choose whose place the next token takes."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.eviction import naive

__all__ = ["choose_victims"]


def choose_victims(
    logits: Tensor,
    lse: Tensor,
    lengths: Tensor,
    newest: Tensor,
    position: Tensor,
    protected: Tensor,
    slot_positions: Tensor,
    scores: Tensor,
    victims: Tensor,
    *,
    rule: str,
) -> None:
    """Score the stored tokens by a step's attention and choose each head's victim; see ``naive.choose_victims``."""
    if use_triton(logits):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.eviction.gpu import choose_victims_gpu

        choose_victims_gpu(
            logits, lse, lengths, newest, position, protected, slot_positions, scores, victims, rule=rule
        )
        return
    naive.choose_victims(logits, lse, lengths, newest, position, protected, slot_positions, scores, victims, rule=rule)
