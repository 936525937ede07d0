"""Causal attention of a prompt chunk over everything before it."""

from longdecode.kernels.prefill_attention.naive import prefill_attention

__all__ = ["prefill_attention"]
