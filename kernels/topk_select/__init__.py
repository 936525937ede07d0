"""The largest scores of each list, as sorted indices."""

from longdecode.kernels.topk_select.naive import topk_select

__all__ = ["topk_select"]
