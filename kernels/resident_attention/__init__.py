"""Attention over blocks in slots, while some of them are still being copied there."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.resident_attention import naive

__all__ = ["resident_attention"]

resident_attention = op(naive.resident_attention)
