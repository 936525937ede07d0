"""Block-sparse attention of a training document: every query reads blocks of its own, with gradients for all inputs."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.sparse_training_attention import naive

__all__ = ["sparse_training_attention"]


def sparse_training_attention(
    q: Tensor, k: Tensor, v: Tensor, read: Tensor, block_size: int, bias: Tensor | None, scale: float
) -> Tensor:
    """Attend causally over the blocks that each query reads; see ``naive.sparse_training_attention``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.sparse_training_attention.gpu import sparse_training_attention_gpu

        return sparse_training_attention_gpu(q, k, v, read, block_size, bias, scale)
    return naive.sparse_training_attention(q, k, v, read, block_size, bias, scale)
