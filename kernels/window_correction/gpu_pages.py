"""Unseen pages of past rows as a Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier

_BLOCK = 256
"""Listed pages that a program takes at once."""


@triton.jit
def unseen_pages_kernel(
    p_loaded, p_indices, p_counts, p_positions, p_mask, loaded_batch, loaded_head, index_batch, index_head, index_entry,
    heads, width, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``mask_tn = A_{list_n} < p_t`` for each past row, true for the newest; then ``A_{list_n} = p_T``.

    Grid ``(ceil(N / BLOCK), B * H)``. ``p_loaded`` ``[B, H, P]`` int32 whose pages are contiguous, ``p_indices``
    ``[B, H, N]`` and ``p_counts`` ``[B, H]`` contiguous int64, ``p_positions`` ``[B, ROWS]`` int64 contiguous,
    ``p_mask`` ``[B, H, ROWS, N]`` uint8 contiguous. No two entries of a list name one page, so that a page is read
    and written by one thread.
    """
    i_list = tl.program_id(1).to(tl.int64)
    i_batch = i_list // heads
    i_head = i_list % heads
    wait_for_earlier(PDL)
    let_next_start(PDL)
    o_entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    listed = o_entry < tl.minimum(tl.load(p_counts + i_list), width)
    b_page = tl.load(
        p_indices + i_batch * index_batch + i_head * index_head + o_entry.to(tl.int64) * index_entry,
        mask=listed, other=0,
    )  # fmt: skip
    p_page = p_loaded + i_batch * loaded_batch + i_head * loaded_head + b_page
    b_last = tl.load(p_page, mask=listed, other=0).to(tl.int64)
    p_mask += i_list * ROWS * width
    for i_row in tl.static_range(0, ROWS):
        unseen = listed
        if i_row < ROWS - 1:
            unseen = listed & (b_last < tl.load(p_positions + i_batch * ROWS + i_row))
        tl.store(p_mask + i_row * width + o_entry, unseen.to(tl.uint8), mask=o_entry < width)
    now = tl.load(p_positions + i_batch * ROWS + ROWS - 1)
    tl.store(p_page, tl.zeros([BLOCK], dtype=tl.int32) + now.to(tl.int32), mask=listed)


def unseen_pages_gpu(loaded: Tensor, indices: Tensor, counts: Tensor, positions: Tensor) -> Tensor:
    """Return the rows' unseen pages and mark them as in ``naive.unseen_pages``, in one launch.

    Args:
        loaded: ``[B, H, P]`` int32, its last dimension contiguous.
        indices: ``[B, H, N]`` int64, any strides, no page twice in a list.
        counts: ``[B, H]`` int64.
        positions: ``[B, T]`` int64.

    Returns:
        ``[B, H, T, N]`` bool.

    Raises:
        ValueError: neighbouring pages of ``loaded`` are not contiguous.
    """
    (batch, heads, width), rows = indices.shape, positions.shape[1]
    if loaded.stride(2) != 1:
        raise ValueError(f"neighbouring pages are {loaded.stride(2)} apart; they must be contiguous")
    mask = torch.empty(batch, heads, rows, width, dtype=torch.bool, device=indices.device)
    with torch.cuda.device_of(indices):
        unseen_pages_kernel[(triton.cdiv(width, _BLOCK), batch * heads)](
            loaded, indices, counts.contiguous(), positions.contiguous(), mask.view(torch.uint8),
            *loaded.stride()[:2], *indices.stride(), heads, width,
            ROWS=rows, BLOCK=_BLOCK, num_warps=4, **overlap_settings(True, indices.device),
        )  # fmt: skip
    return mask
