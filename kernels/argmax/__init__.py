"""The index of each row's largest value."""

from longdecode.kernels.argmax import naive
from longdecode.kernels.dispatch import op

__all__ = ["argmax"]

argmax = op(naive.argmax)
