"""Attention weights of stored slots, for methods that keep the tokens that were attended to."""

from longdecode.kernels.attention_weights import naive
from longdecode.kernels.dispatch import op

__all__ = ["attention_weights"]

attention_weights = op(naive.attention_weights)
