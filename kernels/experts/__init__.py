"""The feed-forward part of a mixture of experts: each row goes through the few experts that its router chooses."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.experts import naive

__all__ = ["experts"]


def experts(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, per_row: int, normalise: bool) -> Tensor:
    """Send each row through its ``per_row`` likeliest experts and add what they return; see ``naive.experts``."""
    if use_triton(x):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.experts.gpu import experts_gpu

        return experts_gpu(x, router, gate_up, down, per_row, normalise)
    return naive.experts(x, router, gate_up, down, per_row, normalise)
