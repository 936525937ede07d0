"""Tokens moved inside a cache, and from one to another, all layers at once."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.token_move import naive
from longdecode.kernels.token_move.naive import PartialSlots

__all__ = ["PartialSlots", "compact_tokens", "fill_tokens"]

compact_tokens = op(naive.compact_tokens)
fill_tokens = op(naive.fill_tokens)
