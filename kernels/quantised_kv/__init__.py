"""Keys and values in eight or four bits: filled after a prefill, appended to in a step, attended to whole.

``Fp8Layer`` and ``Int4Layer`` are the storage of one layer; ``naive.py`` states both formats.
"""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.quantised_kv import naive
from longdecode.kernels.quantised_kv.naive import Fp8Layer, Int4Layer, fill_fp8, fill_int4

__all__ = ["Fp8Layer", "Int4Layer", "append_quantised", "attend_quantised", "fill_fp8", "fill_int4"]

# Triton is installed where it can run; elsewhere this module must still import: the branches import the kernels.


def append_quantised(
    layer: Fp8Layer | Int4Layer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Normalise, rotate and store one token a row; return its queries; see ``naive.append_quantised``."""
    if use_triton(q):
        from longdecode.kernels.quantised_kv.append_gpu import append_quantised_gpu

        return append_quantised_gpu(layer, q, k, v, cos, sin, positions, q_norm=q_norm, k_norm=k_norm, eps=eps)
    return naive.append_quantised(layer, q, k, v, cos, sin, positions, q_norm=q_norm, k_norm=k_norm, eps=eps)


def attend_quantised(
    layer: Fp8Layer | Int4Layer, q: Tensor, lengths: Tensor, kv_tokens_read: Tensor | None = None
) -> Tensor:
    """Return attention over everything stored; see ``naive.attend_quantised``."""
    if not use_triton(q):
        return naive.attend_quantised(layer, q, lengths, kv_tokens_read)
    if isinstance(layer, Fp8Layer):
        from longdecode.kernels.quantised_kv.fp8_gpu import attend_fp8_gpu

        return attend_fp8_gpu(layer, q, lengths, kv_tokens_read)
    from longdecode.kernels.quantised_kv.int4_gpu import attend_int4_gpu

    return attend_int4_gpu(layer, q, lengths, kv_tokens_read)
