"""Attention of one query row over selected blocks of a ragged cache."""

from longdecode.kernels.sparse_decode_attention.naive import sparse_decode_attention

__all__ = ["sparse_decode_attention"]
