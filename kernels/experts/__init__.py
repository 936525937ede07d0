"""The feed-forward part of a mixture of experts: each row goes through the few experts that its router chooses."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.experts import naive

__all__ = ["experts"]

experts = op(naive.experts)
