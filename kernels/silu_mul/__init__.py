"""The gate of a SwiGLU feed-forward layer."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.silu_mul import naive

__all__ = ["silu_mul"]

silu_mul = op(naive.silu_mul)
