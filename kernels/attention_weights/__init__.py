"""Attention weights of stored slots, for methods that keep the tokens that were attended to."""

from longdecode.kernels.attention_weights.naive import attention_weights

__all__ = ["attention_weights"]
