"""The residual addition and the root-mean-square normalisation after it."""

from torch import Tensor

from longdecode.kernels.add_rms_norm import naive
from longdecode.kernels.dispatch import use_triton

__all__ = ["add_rms_norm"]


def add_rms_norm(delta: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a block's output to the residual stream and normalise the sum; see ``naive.add_rms_norm``."""
    if use_triton(residual):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.add_rms_norm.gpu import add_rms_norm_gpu

        return add_rms_norm_gpu(delta, residual, weight, eps)
    return naive.add_rms_norm(delta, residual, weight, eps)
