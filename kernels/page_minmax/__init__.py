"""Channel-wise bounds of the keys in each page of a cache."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.page_minmax import naive, rebuild
from longdecode.kernels.page_minmax.naive import PageBounds

__all__ = ["PageBounds", "build_page_minmax", "rebuild_page_minmax"]


def build_page_minmax(k: Tensor, lengths: Tensor, page_size: int) -> PageBounds:
    """Return the smallest and largest key of every page of a cache; see ``naive.build_page_minmax``."""
    if use_triton(k):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.page_minmax.gpu import build_page_minmax_gpu

        return build_page_minmax_gpu(k, lengths, page_size)
    return naive.build_page_minmax(k, lengths, page_size)


def rebuild_page_minmax(
    bounds: PageBounds, k: Tensor, lengths: Tensor, starts: Tensor, width: int, page_size: int
) -> None:
    """Compute the bounds of the pages that a span of slots touches anew; see ``rebuild.rebuild_page_minmax``."""
    if use_triton(k):
        from longdecode.kernels.page_minmax.rebuild_gpu import rebuild_page_minmax_gpu

        return rebuild_page_minmax_gpu(bounds, k, lengths, starts, width, page_size)
    return rebuild.rebuild_page_minmax(bounds, k, lengths, starts, width, page_size)
