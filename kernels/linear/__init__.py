"""The projections of a decode step: few rows against a weight that is read once."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.linear import naive

__all__ = ["gated_linear", "linear"]

# Triton is installed where it can run; elsewhere this module must still import, so gpu.py is imported in the branches.


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Project the last axis: ``x W^T + b``; see ``naive.linear``."""
    if use_triton(x):
        from longdecode.kernels.linear.gpu import linear_gpu

        return linear_gpu(x, weight, bias)
    return naive.linear(x, weight, bias)


def gated_linear(x: Tensor, gate_up: Tensor) -> Tensor:
    """Project to gate and up and multiply the latter by the SiLU of the former; see ``naive.gated_linear``."""
    if use_triton(x):
        from longdecode.kernels.linear.gpu import gated_linear_gpu

        return gated_linear_gpu(x, gate_up)
    return naive.gated_linear(x, gate_up)
