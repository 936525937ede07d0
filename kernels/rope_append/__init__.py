"""Work of a decode step between projection and attention: rotate queries and keys, append to the cache."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.rope_append import naive

__all__ = ["rope_append"]


def rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    bounds: PageBounds | None = None,
    page_size: int = 0,
) -> Tensor:
    """Rotate the queries and keys of ``T`` tokens, store keys and values; see ``naive.rope_append``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.rope_append.gpu import rope_append_gpu

        return rope_append_gpu(
            q, k, v, cos, sin, k_cache, v_cache, slot_mapping,
            q_norm=q_norm, k_norm=k_norm, eps=eps, bounds=bounds, page_size=page_size,
        )  # fmt: skip
    return naive.rope_append(
        q, k, v, cos, sin, k_cache, v_cache, slot_mapping,
        q_norm=q_norm, k_norm=k_norm, eps=eps, bounds=bounds, page_size=page_size,
    )  # fmt: skip
