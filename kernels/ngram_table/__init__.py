"""A table of the n-grams of a text: what a token was followed by, and how often."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.ngram_table import naive
from longdecode.kernels.ngram_table.naive import NgramCounts, append_text, codes

__all__ = ["NgramCounts", "add_ngrams", "append_text", "codes", "frequent_continuations"]

add_ngrams = op(naive.add_ngrams)
frequent_continuations = op(naive.frequent_continuations)
