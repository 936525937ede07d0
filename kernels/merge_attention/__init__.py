"""Attention over two disjoint sets of keys, joined into attention over both."""

from longdecode.kernels.merge_attention.naive import merge_attention

__all__ = ["merge_attention"]
