"""The index of each row's largest value."""

from torch import Tensor

from longdecode.kernels.argmax import naive
from longdecode.kernels.dispatch import use_triton

__all__ = ["argmax"]


def argmax(x: Tensor) -> Tensor:
    """The first index of each row's largest value; see ``naive.argmax``."""
    if use_triton(x):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.argmax.gpu import argmax_gpu

        return argmax_gpu(x)
    return naive.argmax(x)
