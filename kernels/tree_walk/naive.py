"""Walk of a draft tree by chosen tokens, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_walk(chosen: Tensor, nodes: Tensor, paths: Tensor, depths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Go from row 0 to the row that carries the token chosen, as long as there is one.

    Rows with the same tokens before them stand for one node: of several the first is read.

    Args:
        chosen: ``[B, T]`` int64, the token chosen after each row.
        nodes: ``[B, T - 1]`` int64, the tokens of rows 1 ..; none is -1.
        paths: ``[T, depth + 1]`` int64, the rows from row 0 to each row, its last one repeated.
        depths: ``[T]`` int64, of each row.

    Returns:
        The rows ``[B, depth + 1]`` and the tokens chosen after them, of which the first ``counts`` ``[B]`` count. All
        int64; a row past the end repeats the last.
    """
    batch, rows = chosen.shape
    index = torch.arange(rows, device=chosen.device)
    tokens = torch.cat((chosen[:, :1], nodes), dim=1)
    row = torch.zeros(batch, dtype=torch.int64, device=chosen.device)
    path, counts = [row], torch.ones_like(row)
    agrees = torch.ones_like(chosen, dtype=torch.bool)
    for depth in range(1, paths.shape[1]):
        wanted = chosen.gather(1, row[:, None])
        agrees = agrees & ((depths < depth) | (tokens[:, paths[:, depth]] == wanted))
        first = torch.where(agrees & (depths == depth), index, rows).amin(dim=1)
        counts = counts + (first < rows)
        row = torch.where(first < rows, first, row)
        path.append(row)
    taken = torch.stack(path, dim=1)
    return taken, chosen.gather(1, taken), counts
