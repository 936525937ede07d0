"""Eviction: after a step has read, score the stored tokens and choose whose place the next token takes."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.eviction import naive

__all__ = ["choose_victims"]

choose_victims = op(naive.choose_victims)
