"""Attention of a block of query rows over selected blocks of a ragged cache."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.sparse_decode_attention import naive
from longdecode.kernels.sparse_decode_attention.naive import EVERYTHING

__all__ = ["EVERYTHING", "sparse_decode_attention"]

sparse_decode_attention = op(naive.sparse_decode_attention)
