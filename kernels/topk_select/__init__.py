"""The largest scores of each list, as sorted indices."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.topk_select import naive

__all__ = ["topk_select", "topk_select_into"]


def topk_select(
    scores: Tensor,
    k: int,
    valid: Tensor,
    *,
    keep_first: int = 0,
    keep_last: int = 0,
    row_k: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Ascending indices of the ``k`` largest valid scores of each list; see ``naive.topk_select``."""
    if use_triton(scores):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.topk_select.gpu import topk_select_gpu

        return topk_select_gpu(scores, k, valid, keep_first=keep_first, keep_last=keep_last, row_k=row_k)
    return naive.topk_select(scores, k, valid, keep_first=keep_first, keep_last=keep_last, row_k=row_k)


def topk_select_into(
    scores: Tensor,
    k: int,
    valid: Tensor,
    indices: Tensor,
    heads: Tensor,
    *,
    keep_first: int = 0,
    keep_last: int = 0,
) -> None:
    """The same, written to the lists ``heads`` of ``indices``; see ``naive.topk_select_into``.

    The Triton path wants the last dimension of ``indices`` contiguous and raises ValueError where it is not.
    """
    if use_triton(scores):
        from longdecode.kernels.topk_select.gpu import topk_select_into_gpu

        return topk_select_into_gpu(scores, k, valid, indices, heads, keep_first=keep_first, keep_last=keep_last)
    return naive.topk_select_into(scores, k, valid, indices, heads, keep_first=keep_first, keep_last=keep_last)
