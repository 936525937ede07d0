"""Root-mean-square normalisation, alone and after a residual addition."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.rms_norm import naive

__all__ = ["add_rms_norm", "rms_norm"]

rms_norm = op(naive.rms_norm)
add_rms_norm = op(naive.add_rms_norm, gpu="add_gpu")
