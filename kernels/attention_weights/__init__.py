"""Attention weights of stored slots, for methods that keep the tokens that were attended to."""

from torch import Tensor

from longdecode.kernels.attention_weights import naive
from longdecode.kernels.dispatch import use_triton

__all__ = ["attention_weights"]


def attention_weights(
    q: Tensor,
    k: Tensor,
    kv_lengths: Tensor,
    *,
    group: str,
    mask: Tensor | None = None,
    scale: float | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Return the probability of each stored slot, summed over rows; see ``naive.attention_weights``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.attention_weights.gpu import attention_weights_gpu

        return attention_weights_gpu(q, k, kv_lengths, group=group, mask=mask, scale=scale, lse=lse)
    return naive.attention_weights(q, k, kv_lengths, group=group, mask=mask, scale=scale, lse=lse)
