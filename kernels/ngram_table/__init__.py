"""A table of the n-grams of a text: what a token was followed by, and how often."""

from torch import Tensor

from longdecode.kernels.dispatch import kernel_path
from longdecode.kernels.ngram_table import naive
from longdecode.kernels.ngram_table.naive import NgramCounts, append_text, codes

__all__ = ["NgramCounts", "add_ngrams", "append_text", "codes", "frequent_continuations"]


def add_ngrams(table: NgramCounts, tokens: Tensor, kept: Tensor) -> None:
    """Append tokens ``[B, W]`` and count the n-grams that the lag sets free; see ``naive.add_ngrams``."""
    if kernel_path(tokens.device) == "triton":
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.ngram_table.gpu import add_ngrams_gpu

        return add_ngrams_gpu(table, tokens, kept)
    return naive.add_ngrams(table, tokens, kept)


def frequent_continuations(table: NgramCounts, first: Tensor, k: int) -> Tensor:
    """The ``k`` most frequent continuations of ``first``, ``[B, k, order - 1]``; see ``naive``."""
    if kernel_path(first.device) == "triton":
        from longdecode.kernels.ngram_table.gpu import frequent_continuations_gpu

        return frequent_continuations_gpu(table, first, k)
    return naive.frequent_continuations(table, first, k)
