"""The gate of a SwiGLU feed-forward layer."""

from longdecode.kernels.silu_mul.naive import silu_mul

__all__ = ["silu_mul"]
