"""Attention of a block of query rows over a ragged cache."""

from torch import Tensor

from longdecode.kernels.decode_attention.cpu import decode_attention_cpu
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.layout import check_block, on_host

__all__ = ["decode_attention"]


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lengths: Tensor,
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
    kv_tokens_read: Tensor | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention of ``T`` rows over everything stored, the block masked; see ``naive.decode_attention``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.decode_attention.gpu import decode_attention_gpu

        return decode_attention_gpu(
            q, k, v, kv_lengths, mask=mask, scale=scale, kv_tokens_read=kv_tokens_read, logits=logits
        )
    check_block(kv_lengths, mask, q.shape[2])
    if on_host(q) and logits is None and kv_lengths.dim() == 1:
        ends = kv_lengths.tolist()
        if ends and min(ends) >= q.shape[2]:
            return decode_attention_cpu(q, k, v, ends, mask=mask, scale=scale, kv_tokens_read=kv_tokens_read)
    from longdecode.kernels.decode_attention import naive  # most calls have ended before

    return naive.decode_attention(
        q, k, v, kv_lengths, mask=mask, scale=scale, kv_tokens_read=kv_tokens_read, logits=logits
    )
