"""The projections of a decode step, few rows against a weight that is read once, and the gate of a SwiGLU layer."""

from collections.abc import Callable

from torch import Tensor

from longdecode.kernels.dispatch import op, use_triton
from longdecode.kernels.linear import naive
from longdecode.kernels.rms_norm import add_rms_norm

__all__ = ["gated_linear", "linear", "norm_linear", "silu_mul"]

linear = op(naive.linear)
gated_linear = op(naive.gated_linear)
silu_mul = op(naive.silu_mul, gpu="silu_gpu")


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
    add_norm: Callable[..., tuple[Tensor, Tensor]] = add_rms_norm,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Add, norm and project: the projection, the total and what was projected; see ``naive.norm_linear``.

    One row is normed by the projection itself, so that nothing is left to return in the last place; ``keep_normed``
    forbids that, as does an ``add_norm`` of the caller's, which takes what ``add_rms_norm`` takes.
    """
    rows = residual.numel() // residual.shape[-1]
    if add_norm is add_rms_norm and not keep_normed and use_triton(residual):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.linear.launch import fuses_norm
        from longdecode.kernels.linear.norm_gpu import norm_linear_gpu

        if fuses_norm(residual.shape[-1], rows, residual.dtype):
            return *norm_linear_gpu(delta, residual, norm, eps, weight, bias, gated), None
    normed, total = add_norm(delta, residual, norm, eps)
    return gated_linear(normed, weight) if gated else linear(normed, weight, bias), total, normed
