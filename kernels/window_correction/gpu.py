"""Corrections of past rows as Triton kernels, one launch each."""

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


@triton.jit
def merge_window_kernel(
    p_out, p_lse, p_kept, p_kept_lse, p_merged, heads,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``o_t = (e^{l_t} o_t + e^{k_t} kept_t) / (e^{l_t} + e^{k_t})``; then ``kept_{t-1} = o_t``.

    Grid ``(Hq, B)``, one warp a program: it goes through the rows in order and writes place ``t - 1`` after it has
    read it, each lane its own channels. ``p_out`` ``[B, Hq, ROWS, D]``, ``p_kept`` ``[B, Hq, ROWS - 1, D]``, ``p_lse``
    and ``p_kept_lse`` without ``D`` float32, all contiguous; ``p_merged`` ``[B, ROWS, Hq, D]`` contiguous.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_list = i_batch * heads + i_head
    o_dim = tl.arange(0, BLOCK_DIM)
    inside = o_dim < DIM
    dtype = p_kept.dtype.element_ty
    for i_row in range(ROWS):
        b_out = tl.load(p_out + (i_list * ROWS + i_row) * DIM + o_dim, mask=inside, other=0.0)
        lse = tl.load(p_lse + i_list * ROWS + i_row)
        place = i_list * (ROWS - 1) + i_row
        past = i_row < ROWS - 1
        b_kept = tl.load(p_kept + place * DIM + o_dim, mask=inside & past, other=0.0)
        kept_lse = tl.load(p_kept_lse + place, mask=past, other=float("-inf"))
        top = tl.maximum(lse, kept_lse)
        base = tl.where(top == float("-inf"), 0.0, top)
        new, old = tl.exp(lse - base), tl.exp(kept_lse - base)
        total = new + old
        merged_lse = tl.where(total > 0, base + tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))
        scale = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
        b_merged = ((new * b_out.to(tl.float32) + old * b_kept.to(tl.float32)) * scale).to(dtype)
        p_to = p_merged + ((i_batch * ROWS + i_row) * heads + i_head) * DIM
        tl.store(p_to + o_dim, b_merged, mask=inside)
        tl.store(p_kept + (place - 1) * DIM + o_dim, b_merged, mask=inside & (i_row > 0))
        tl.store(p_kept_lse + place - 1, merged_lse, mask=i_row > 0)


def merge_window_gpu(out: Tensor, lse: Tensor, kept: Tensor, kept_lse: Tensor) -> Tensor:
    """Merge and move the window as in ``naive.merge_window``, in one launch.

    Args:
        out: ``[B, Hq, T, D]``, float32, float16 or bfloat16, contiguous.
        lse: ``[B, Hq, T]`` float32, contiguous.
        kept: ``[B, Hq, T - 1, D]`` in ``out``'s dtype, contiguous.
        kept_lse: ``[B, Hq, T - 1]`` float32, contiguous.

    Returns:
        ``[B, Hq, T, D]``, laid out as ``[B, T, Hq, D]``, which the output projection reads without a copy.

    Raises:
        ValueError: a tensor is not contiguous, or the window does not fit the rows.
    """
    batch, heads, rows, dim = out.shape
    if kept.shape != (batch, heads, rows - 1, dim) or kept.dtype != out.dtype:
        raise ValueError(f"kept {kept.dtype} {tuple(kept.shape)} for rows {out.dtype} {tuple(out.shape)}")
    if not all(tensor.is_contiguous() for tensor in (out, lse, kept, kept_lse)):
        raise ValueError("rows and what they kept must be contiguous")
    merged = torch.empty(batch, rows, heads, dim, dtype=out.dtype, device=out.device)
    with torch.cuda.device_of(out):
        merge_window_kernel[(heads, batch)](
            out, lse, kept, kept_lse, merged, heads,
            ROWS=rows, DIM=dim, BLOCK_DIM=triton.next_power_of_2(dim), num_warps=1,
            **overlap_settings(True, out.device),
        )  # fmt: skip
    return merged.transpose(1, 2)
