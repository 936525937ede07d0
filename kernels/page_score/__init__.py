"""Upper bound of a query's score on the keys of a page."""

from torch import Tensor

from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.page_score import naive

__all__ = ["page_score"]


def page_score(q: Tensor, bounds: PageBounds, pages: Tensor, *, group: str | None = None) -> Tensor:
    """Upper bound of ``q . k`` over the keys of each page; see ``naive.page_score``."""
    if use_triton(q):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.page_score.gpu import page_score_gpu

        return page_score_gpu(q, bounds, pages, group=group)
    return naive.page_score(q, bounds, pages, group=group)
