"""Channel-wise bounds of the keys in each page of a cache."""

from longdecode.kernels.page_minmax.naive import PageBounds, build_page_minmax, update_page_minmax

__all__ = ["PageBounds", "build_page_minmax", "update_page_minmax"]
