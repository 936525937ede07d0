"""Rotary position embedding, alone or with what stands between projection and attention: the append to the cache."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.rope import naive

__all__ = ["apply_rope", "rope_append", "rotate"]

rotate = op(naive.rotate)
apply_rope = op(naive.apply_rope)
rope_append = op(naive.rope_append, gpu="append_gpu")
