"""The residual addition and the root-mean-square normalisation after it."""

from longdecode.kernels.add_rms_norm import naive
from longdecode.kernels.dispatch import op

__all__ = ["add_rms_norm"]

add_rms_norm = op(naive.add_rms_norm)
