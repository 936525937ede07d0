"""A window of rows in one decode step: stored together, reading unseen pages, merged into what they kept."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.window_correction import naive

__all__ = ["append_window", "attend_window", "unseen_pages"]

append_window = op(naive.append_window, gpu="gpu_append")
attend_window = op(naive.attend_window)
unseen_pages = op(naive.unseen_pages, gpu="gpu_pages")
