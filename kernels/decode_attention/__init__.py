"""Attention of a few query rows over a ragged cache."""

from torch import Tensor

from longdecode.kernels.decode_attention import naive
from longdecode.kernels.decode_attention.cpu import decode_attention_cpu
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.layout import on_host

__all__ = ["decode_attention"]


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    kv_tokens_read: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of every query row over the first ``lengths[b]`` keys; see ``naive.decode_attention``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.decode_attention.gpu import decode_attention_gpu

        return decode_attention_gpu(q, k, v, lengths, scale=scale, kv_tokens_read=kv_tokens_read)
    if on_host(q) and (ends := lengths.tolist()) and min(ends) > 0:
        return decode_attention_cpu(q, k, v, ends, scale=scale, kv_tokens_read=kv_tokens_read)
    return naive.decode_attention(q, k, v, lengths, scale=scale, kv_tokens_read=kv_tokens_read)
