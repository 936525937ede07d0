"""Walk of a draft tree by the tokens chosen after its rows."""

from longdecode.kernels.dispatch import op
from longdecode.kernels.tree_walk import naive

__all__ = ["tree_walk"]

tree_walk = op(naive.tree_walk)
