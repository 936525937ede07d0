"""Upper bound of a query's score on the keys of a page."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.page_score import naive

__all__ = ["page_score"]

page_score = op(naive.page_score)
