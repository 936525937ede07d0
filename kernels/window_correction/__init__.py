"""Corrections of past rows: which listed pages they have not seen, and the merge into what they kept."""

import torch
from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.window_correction import naive

__all__ = ["merge_window", "unseen_pages"]


def unseen_pages(loaded: Tensor, indices: Tensor, counts: Tensor, positions: Tensor) -> Tensor:
    """Return which listed pages each row has not seen and mark them as loaded; see ``naive.unseen_pages``."""
    # Integers have no path of their own: they take that of float32 on their device.
    if use_triton(loaded.new_empty(0, dtype=torch.float32)):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.window_correction.gpu import unseen_pages_gpu

        return unseen_pages_gpu(loaded, indices, counts, positions)
    return naive.unseen_pages(loaded, indices, counts, positions)


def merge_window(out: Tensor, lse: Tensor, kept: Tensor, kept_lse: Tensor) -> Tensor:
    """Merge what past rows kept with what they read now and move the window on; see ``naive.merge_window``."""
    if use_triton(out):
        from longdecode.kernels.window_correction.gpu import merge_window_gpu

        return merge_window_gpu(out, lse, kept, kept_lse)
    return naive.merge_window(out, lse, kept, kept_lse)
