"""A window of rows in one decode step: stored together, reading unseen pages, merged into what they kept."""

import torch
from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.window_correction import naive

__all__ = ["append_window", "attend_window", "unseen_pages"]

# Triton is installed where it can run; elsewhere this module must still import: the branches import the kernels.


def append_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    bounds: PageBounds,
    page_size: int,
    lengths: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate and store a window's tokens, then compute its pages' bounds anew; see ``naive.append_window``."""
    if use_triton(q):
        from longdecode.kernels.window_correction.gpu_append import append_window_gpu

        return append_window_gpu(
            q, k, v, cos, sin, k_cache, v_cache, slot_mapping, bounds, page_size, lengths,
            q_norm=q_norm, k_norm=k_norm, eps=eps,
        )  # fmt: skip
    return naive.append_window(
        q, k, v, cos, sin, k_cache, v_cache, slot_mapping, bounds, page_size, lengths,
        q_norm=q_norm, k_norm=k_norm, eps=eps,
    )  # fmt: skip


def attend_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    loaded: Tensor,
    positions: Tensor,
    limits: Tensor,
    kept: Tensor,
    kept_lse: Tensor,
    *,
    block_size: int,
    kv_tokens_read: Tensor,
) -> Tensor:
    """Read listed pages for a window's rows and merge what they kept; see ``naive.attend_window``."""
    if use_triton(q):
        from longdecode.kernels.window_correction.gpu import attend_window_gpu

        return attend_window_gpu(
            q, k, v, indices, counts, loaded, positions, limits, kept, kept_lse,
            block_size=block_size, kv_tokens_read=kv_tokens_read,
        )  # fmt: skip
    return naive.attend_window(
        q, k, v, indices, counts, loaded, positions, limits, kept, kept_lse,
        block_size=block_size, kv_tokens_read=kv_tokens_read,
    )  # fmt: skip


def unseen_pages(loaded: Tensor, indices: Tensor, counts: Tensor, positions: Tensor) -> Tensor:
    """Return which listed pages each row has not seen and mark them as loaded; see ``naive.unseen_pages``."""
    # Integers have no path of their own: they take that of float32 on their device.
    if use_triton(loaded.new_empty(0, dtype=torch.float32)):
        from longdecode.kernels.window_correction.gpu_pages import unseen_pages_gpu

        return unseen_pages_gpu(loaded, indices, counts, positions)
    return naive.unseen_pages(loaded, indices, counts, positions)
