"""Work of a decode step between projection and attention: rotate queries and keys, append to the cache."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.rope_append import naive

__all__ = ["rope_append"]

rope_append = op(naive.rope_append)
