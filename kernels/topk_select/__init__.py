"""The largest scores of each list, as sorted indices."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.topk_select import naive

__all__ = ["topk_select", "topk_select_into"]

topk_select = op(naive.topk_select)
topk_select_into = op(naive.topk_select_into)
