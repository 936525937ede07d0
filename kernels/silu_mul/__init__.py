"""The gate of a SwiGLU feed-forward layer."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.silu_mul import naive

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """Multiply the second half by the SiLU of the first; see ``naive.silu_mul``."""
    if use_triton(gate_up):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.silu_mul.gpu import silu_mul_gpu

        return silu_mul_gpu(gate_up)
    return naive.silu_mul(gate_up)
