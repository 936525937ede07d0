"""Walk of a draft tree by the tokens chosen after its rows."""

from torch import Tensor

from longdecode.kernels.dispatch import kernel_path
from longdecode.kernels.tree_walk import naive

__all__ = ["tree_walk"]


def tree_walk(chosen: Tensor, nodes: Tensor, paths: Tensor, depths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and tokens of the path taken, ``[B, depth + 1]``, and how many count, ``[B]``; see ``naive.tree_walk``."""
    if kernel_path(chosen.device) == "triton":
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.tree_walk.gpu import tree_walk_gpu

        return tree_walk_gpu(chosen, nodes, paths, depths)
    return naive.tree_walk(chosen, nodes, paths, depths)
