"""Attention of a block of query rows over selected blocks of a ragged cache."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.sparse_decode_attention import naive
from longdecode.kernels.sparse_decode_attention.naive import EVERYTHING

__all__ = ["EVERYTHING", "sparse_decode_attention"]


def sparse_decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    kv_lengths: Tensor,
    row_mask: Tensor | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    scores: Tensor | None = None,
    score_rows: Tensor | None = None,
    score_block: int = 1,
    uneven: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention over the tokens of the listed blocks; see ``naive.sparse_decode_attention``.

    ``uneven`` is a load-balancing hint for lists that differ much in length, without effect on the output. The Triton
    path scores blocks of a power of two tokens, raises ValueError for others, and then takes up to 64 query heads a
    list.
    """
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu

        return sparse_decode_attention_gpu(
            q, k, v, indices, counts,
            block_size=block_size, kv_lengths=kv_lengths, row_mask=row_mask, scale=scale, bias=bias,
            kv_tokens_read=kv_tokens_read, scores=scores, score_rows=score_rows, score_block=score_block, uneven=uneven,
        )  # fmt: skip
    return naive.sparse_decode_attention(
        q, k, v, indices, counts, block_size=block_size, kv_lengths=kv_lengths, row_mask=row_mask, scale=scale,
        bias=bias, kv_tokens_read=kv_tokens_read, scores=scores, score_rows=score_rows, score_block=score_block,
    )  # fmt: skip
