"""Block-sparse attention of a training document: every query reads blocks of its own, with gradients for all inputs."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.sparse_training_attention import naive

__all__ = ["sparse_training_attention"]

sparse_training_attention = op(naive.sparse_training_attention)
