"""Attention over blocks in slots, while some of them are still being copied there."""

from torch import Tensor

from longdecode.kernels.block_residency import Arrivals
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.resident_attention import naive

__all__ = ["resident_attention"]


def resident_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    kv_lengths: Tensor,
    bias: Tensor | None = None,
    bias_blocks: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    arrivals: Arrivals | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention over the tokens of the listed blocks; see ``naive.resident_attention``.

    With ``arrivals`` it must follow the copy at once: its programs begin while that runs, where launches overlap, and
    each waits for its own blocks. The bits are the same with and without.
    """
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.resident_attention.gpu import resident_attention_gpu

        return resident_attention_gpu(
            q, k, v, slots, counts, block_size=block_size, kv_lengths=kv_lengths, bias=bias,
            bias_blocks=bias_blocks, kv_tokens_read=kv_tokens_read, arrivals=arrivals,
        )  # fmt: skip
    return naive.resident_attention(
        q, k, v, slots, counts, block_size=block_size, kv_lengths=kv_lengths, bias=bias, bias_blocks=bias_blocks,
        kv_tokens_read=kv_tokens_read,
    )  # fmt: skip
