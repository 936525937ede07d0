"""The projections of a decode step: few rows against a weight that is read once."""

from torch import Tensor

from longdecode.kernels.add_rms_norm import add_rms_norm
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.linear import naive
from longdecode.kernels.linear.launch import fuses_norm

__all__ = ["gated_linear", "linear", "norm_linear"]

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


def norm_linear(
    delta: Tensor | None,
    residual: Tensor,
    norm: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
    keep_normed: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Add, norm and project: the projection, the total and what was projected; see ``naive.norm_linear``.

    One row is normed by the projection itself, so that nothing is left to return in the last place; ``keep_normed``
    forbids that.
    """
    rows = residual.numel() // residual.shape[-1]
    if not keep_normed and use_triton(residual) and fuses_norm(residual.shape[-1], rows, residual.dtype):
        from longdecode.kernels.linear.norm_gpu import norm_linear_gpu

        return *norm_linear_gpu(delta, residual, norm, eps, weight, bias, gated), None
    normed, total = add_rms_norm(delta, residual, norm, eps)
    return gated_linear(normed, weight) if gated else linear(normed, weight, bias), total, normed
