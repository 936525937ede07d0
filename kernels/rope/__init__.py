"""Rotary position embedding."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.rope import naive

__all__ = ["apply_rope", "rotate"]

rotate = op(naive.rotate)
apply_rope = op(naive.apply_rope)
