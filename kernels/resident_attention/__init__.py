"""Attention over blocks in slots, what is on the device first and what is still on its way afterwards."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.resident_attention import naive
from longdecode.kernels.resident_attention.naive import Arriving

__all__ = ["Arriving", "resident_attention"]


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
    kv_tokens_read: Tensor | None = None,
    arriving: Arriving | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention over the tokens of the listed blocks; see ``naive.resident_attention``.

    The Triton path reads what is at hand before it waits for ``arriving``; with and without it gives the same bits.
    """
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.resident_attention.gpu import resident_attention_gpu

        return resident_attention_gpu(
            q, k, v, slots, counts, block_size=block_size, kv_lengths=kv_lengths, bias=bias,
            kv_tokens_read=kv_tokens_read, arriving=arriving,
        )  # fmt: skip
    return naive.resident_attention(
        q, k, v, slots, counts, block_size=block_size, kv_lengths=kv_lengths, bias=bias, kv_tokens_read=kv_tokens_read,
        arriving=arriving,
    )  # fmt: skip
