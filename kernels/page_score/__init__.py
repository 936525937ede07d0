"""How high a query can score on any key of a page."""

from longdecode.kernels.page_score.naive import page_score

__all__ = ["page_score"]
