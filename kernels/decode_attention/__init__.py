"""Attention of a few query rows over a ragged cache."""

from longdecode.kernels.decode_attention.naive import decode_attention

__all__ = ["decode_attention"]
