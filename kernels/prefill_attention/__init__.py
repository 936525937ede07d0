"""Causal attention of a prompt chunk over everything before it."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.prefill_attention import chunk_naive
from longdecode.kernels.prefill_attention.chunk_split import chunk_attention_split
from longdecode.kernels.prefill_attention.naive import prefill_attention

__all__ = ["chunk_attention", "prefill_attention"]


def chunk_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Causal attention of a chunk that starts at another position in each row; see ``chunk_naive.chunk_attention``."""
    if use_triton(q):
        return chunk_attention_split(q, k, v, starts)
    return chunk_naive.chunk_attention(q, k, v, starts)
