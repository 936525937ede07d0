"""Chunks of a prompt fetched into slots: keys rebuilt from factors of low rank, values copied from host memory.

On CUDA the values may lie in pinned host memory.
"""

from longdecode.kernels.dispatch import op
from longdecode.kernels.low_rank_fetch import naive
from longdecode.kernels.low_rank_fetch.naive import LowRankPrompt

__all__ = ["LowRankPrompt", "fetch_chunks"]

fetch_chunks = op(naive.fetch_chunks)
