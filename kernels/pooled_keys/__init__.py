"""Mean-pooled keys of overlapping windows, built once and appended to in place."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.pooled_keys import naive
from longdecode.kernels.pooled_keys.naive import PooledKeys, Pooling, build_pooled_keys, pool_means

__all__ = ["PooledKeys", "Pooling", "append_pooled_key", "build_pooled_keys", "pool_means"]


def append_pooled_key(pooled: PooledKeys, k: Tensor, slots: Tensor, lengths: Tensor, pooling: Pooling) -> None:
    """Take over the newest key and the mean of a window that it completes; see ``naive.append_pooled_key``."""
    if use_triton(k):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.pooled_keys.gpu import append_pooled_key_gpu

        return append_pooled_key_gpu(pooled, k, slots, lengths, pooling)
    return naive.append_pooled_key(pooled, k, slots, lengths, pooling)
