"""Recording of the tokens that a step chose."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.emission import naive
from longdecode.kernels.emission.naive import Progress

__all__ = ["Progress", "record_tokens"]

record_tokens = op(naive.record_tokens)
