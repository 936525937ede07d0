"""Root-mean-square normalisation."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.rms_norm import naive

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector to unit root mean square, then by a learned weight; see ``naive.rms_norm``."""
    if use_triton(x):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.rms_norm.gpu import rms_norm_gpu

        return rms_norm_gpu(x, weight, eps)
    return naive.rms_norm(x, weight, eps)
