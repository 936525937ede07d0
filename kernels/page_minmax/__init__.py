"""Channel-wise bounds of the keys in each page of a cache."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.page_minmax import naive
from longdecode.kernels.page_minmax.naive import PageBounds, touched_pages

__all__ = ["PageBounds", "build_page_minmax", "rebuild_page_minmax", "touched_pages"]

build_page_minmax = op(naive.build_page_minmax)
rebuild_page_minmax = op(naive.rebuild_page_minmax, gpu="rebuild_gpu")
