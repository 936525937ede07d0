"""Tokens moved inside a cache, and from one to another, all layers at once."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.token_move import naive
from longdecode.kernels.token_move.naive import PartialSlots

__all__ = ["PartialSlots", "compact_tokens", "fill_tokens"]


def compact_tokens(k: Tensor, v: Tensor, starts: Tensor, rows: Tensor) -> None:
    """Move block rows ``rows`` ``[B, N]`` to the slots from ``starts`` on; see ``naive.compact_tokens``."""
    if use_triton(k):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.token_move.gpu import compact_tokens_gpu

        return compact_tokens_gpu(k, v, starts, rows)
    return naive.compact_tokens(k, v, starts, rows)


def fill_tokens(k: Tensor, v: Tensor, starts: Tensor, kept: Tensor, width: int, into: PartialSlots) -> None:
    """Copy verified tokens to a partial cache; see ``naive.fill_tokens``."""
    if use_triton(k):
        from longdecode.kernels.token_move.gpu import fill_tokens_gpu

        return fill_tokens_gpu(k, v, starts, kept, width, into)
    return naive.fill_tokens(k, v, starts, kept, width, into)
