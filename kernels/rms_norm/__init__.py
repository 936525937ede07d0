"""Root-mean-square normalisation."""

from longdecode.kernels.rms_norm.naive import rms_norm

__all__ = ["rms_norm"]
