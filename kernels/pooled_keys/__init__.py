"""Mean-pooled keys of overlapping windows, built once and appended to in place."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.pooled_keys import naive
from longdecode.kernels.pooled_keys.naive import PooledKeys, Pooling, build_pooled_keys, pool_means

__all__ = ["PooledKeys", "Pooling", "append_pooled_key", "build_pooled_keys", "pool_means"]

append_pooled_key = op(naive.append_pooled_key)
