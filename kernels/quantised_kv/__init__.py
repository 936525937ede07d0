"""Keys and values in eight or four bits: filled after a prefill, appended to in a step, attended to whole.

``Fp8Layer`` and ``Int4Layer`` are the storage of one layer; ``naive.py`` states both formats.
"""

from torch import Tensor

from longdecode.kernels.dispatch import op, use_triton
from longdecode.kernels.quantised_kv import naive
from longdecode.kernels.quantised_kv.naive import Fp8Layer, Int4Layer, fill_fp8, fill_int4, new_fp8, new_int4

__all__ = ["Fp8Layer", "Int4Layer", "append_quantised", "attend_quantised", "fill_fp8", "fill_int4", "new_fp8",
           "new_int4"]  # fmt: skip

append_quantised = op(naive.append_quantised, gpu="append_gpu")


def attend_quantised(
    layer: Fp8Layer | Int4Layer, q: Tensor, lengths: Tensor, kv_tokens_read: Tensor | None = None
) -> Tensor:
    """Return attention over everything stored; see ``naive.attend_quantised``."""
    if not use_triton(q):
        return naive.attend_quantised(layer, q, lengths, kv_tokens_read)
    # Triton is installed where it can run; elsewhere this module must still import.
    if isinstance(layer, Fp8Layer):
        from longdecode.kernels.quantised_kv.fp8_gpu import attend_fp8_gpu

        return attend_fp8_gpu(layer, q, lengths, kv_tokens_read)
    from longdecode.kernels.quantised_kv.int4_gpu import attend_int4_gpu

    return attend_int4_gpu(layer, q, lengths, kv_tokens_read)
