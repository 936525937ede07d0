"""Walk of a draft tree as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier


@triton.jit
def tree_walk_kernel(
    p_chosen, p_nodes, p_paths, p_depths, p_rows, p_tokens, p_counts, rows, node_batch,
    DEPTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Find the path of one sequence; see ``naive.tree_walk``.

    ``p_chosen`` ``[B, T]``, ``p_nodes`` ``[B, T - 1]`` with rows ``node_batch`` apart, ``p_paths`` ``[T, DEPTH + 1]``,
    ``p_depths`` ``[T]``, ``p_rows`` and ``p_tokens`` ``[B, DEPTH + 1]``, ``p_counts`` ``[B]``, all int64. Grid
    ``(B,)``. Moves ``8 * T * (2 * DEPTH + 1)`` bytes a sequence.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_batch = tl.program_id(0).to(tl.int64)
    o_row = tl.arange(0, BLOCK)
    inside = o_row < rows
    b_depth = tl.load(p_depths + o_row, mask=inside, other=-1)
    p_out = i_batch * (DEPTH + 1)
    b_row = i_batch * 0
    b_count = b_row + 1
    b_token = tl.load(p_chosen + i_batch * rows)
    tl.store(p_rows + p_out, b_row)
    tl.store(p_tokens + p_out, b_token)
    b_agrees = inside
    for i_depth in tl.static_range(1, DEPTH + 1):
        deep = b_agrees & (b_depth >= i_depth)
        b_ancestor = tl.load(p_paths + o_row.to(tl.int64) * (DEPTH + 1) + i_depth, mask=deep, other=1)
        b_node = tl.load(p_nodes + i_batch * node_batch + b_ancestor - 1, mask=deep, other=-1)
        b_agrees = deep & (b_node == b_token)
        b_first = tl.min(tl.where(b_agrees & (b_depth == i_depth), o_row, BLOCK), 0)
        found = b_first < BLOCK
        b_count += found.to(tl.int64)
        b_row = tl.where(found, b_first.to(tl.int64), b_row)
        b_token = tl.load(p_chosen + i_batch * rows + b_row)
        tl.store(p_rows + p_out + i_depth, b_row)
        tl.store(p_tokens + p_out + i_depth, b_token)
    tl.store(p_counts + i_batch, b_count)


def tree_walk_gpu(chosen: Tensor, nodes: Tensor, paths: Tensor, depths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Walk as in ``naive.tree_walk``, in one launch; the tree's tables contiguous."""
    (batch, rows), chosen, nodes = chosen.shape, chosen.contiguous(), nodes.contiguous()
    taken = torch.empty(batch, paths.shape[1], dtype=torch.int64, device=chosen.device)
    tokens, counts = torch.empty_like(taken), torch.empty(batch, dtype=torch.int64, device=chosen.device)
    with torch.cuda.device_of(chosen):
        tree_walk_kernel[(batch,)](
            chosen, nodes, paths, depths, taken, tokens, counts, rows, nodes.stride(0), DEPTH=paths.shape[1] - 1,
            BLOCK=triton.next_power_of_2(rows), num_warps=4, **overlap_settings(True, chosen.device),
        )  # fmt: skip
    return taken, tokens, counts
