"""Scores of blocks from logits over pooled keys."""

from longdecode.kernels.block_score import naive
from longdecode.kernels.block_score.naive import newest_first, normaliser
from longdecode.kernels.dispatch import op

__all__ = ["block_scores", "newest_first", "normaliser"]

block_scores = op(naive.block_scores)
