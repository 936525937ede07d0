"""Rotary position embedding."""

from longdecode.kernels.rope.naive import apply_rope, rotate

__all__ = ["apply_rope", "rotate"]
