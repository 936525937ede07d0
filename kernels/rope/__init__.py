"""Rotary position embedding."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.rope import naive

__all__ = ["apply_rope", "rotate"]

# Triton is installed where it can run; elsewhere this module must still import, so gpu.py is imported in the branches.


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair ``(x_i, x_{i + D/2})`` by its angle; see ``naive.rotate``."""
    if use_triton(x):
        from longdecode.kernels.rope.gpu import rotate_gpu

        return rotate_gpu(x, cos, sin)
    return naive.rotate(x, cos, sin)


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions; see ``naive.apply_rope``."""
    if use_triton(q):
        from longdecode.kernels.rope.gpu import apply_rope_gpu

        return apply_rope_gpu(q, k, cos, sin)
    return naive.apply_rope(q, k, cos, sin)
