"""Page bounds of a span that was written over, as a Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.page_minmax.naive import PageBounds, touched_pages


@triton.jit
def rebuild_page_minmax_kernel(
    p_k, p_lengths, p_starts, p_minimum, p_maximum, k_batch, k_head, k_token, k_dim,
    m_batch, m_head, m_page, m_dim, x_batch, x_head, x_page, x_dim, size, pages,
    PAGE_SIZE: tl.constexpr, BLOCK_PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``m_j = min_{i in page j} k_i`` and ``M_j`` of the pages from ``start / PAGE_SIZE`` on.

    Grid ``(pages touched, H, B)``. ``p_k`` ``[B, H, S, D]`` is the cache, ``p_minimum`` (strides ``m_*``) and
    ``p_maximum`` (``x_*``) ``[B, H, P, D]`` float32, float16 or bfloat16, ``p_lengths`` and ``p_starts`` ``[B]``
    integer. A page without a token stays as it is. Moves ``(PAGE_SIZE + 2) * D`` elements a program.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3.
    """
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    wait_for_earlier(PDL)
    let_next_start(PDL)
    o_dim = tl.arange(0, BLOCK_DIM)
    o_step = tl.arange(0, BLOCK_PAGE)
    length = tl.minimum(tl.load(p_lengths + i_batch).to(tl.int64), size)
    page = tl.maximum(tl.load(p_starts + i_batch).to(tl.int64), 0) // PAGE_SIZE + tl.program_id(0)
    if (page * PAGE_SIZE < length) & (page < pages):
        inside = o_dim < DIM
        o_token = page * PAGE_SIZE + o_step
        stored = (o_step < PAGE_SIZE) & (o_token < length)
        o_k = o_token[:, None] * k_token + (o_dim * k_dim)[None, :]
        p_k += i_batch * k_batch + i_head * k_head
        b_k = tl.load(p_k + o_k, mask=stored[:, None] & inside[None, :], other=0.0).to(tl.float32)
        b_least = tl.min(tl.where(stored[:, None], b_k, float("inf")), 0)
        b_most = tl.max(tl.where(stored[:, None], b_k, float("-inf")), 0)
        p_least = p_minimum + i_batch * m_batch + i_head * m_head + page * m_page + o_dim * m_dim
        p_most = p_maximum + i_batch * x_batch + i_head * x_head + page * x_page + o_dim * x_dim
        tl.store(p_least, b_least.to(p_minimum.dtype.element_ty), mask=inside)
        tl.store(p_most, b_most.to(p_maximum.dtype.element_ty), mask=inside)


def rebuild_page_minmax_gpu(
    bounds: PageBounds, k: Tensor, lengths: Tensor, starts: Tensor, width: int, page_size: int
) -> None:
    """Compute the bounds of touched pages anew as in ``rebuild.rebuild_page_minmax``, in one launch.

    Args:
        bounds: ``[B, H, P, D]`` twice, changed in place, any strides.
        k: ``[B, H, S, D]`` in the bounds' dtype, any strides.
        lengths: ``[B]`` integers.
        starts: ``[B]`` integers.
        width: slots in the span.
        page_size: tokens in a page.
    """
    batch, heads, size, dim = k.shape
    with torch.cuda.device_of(k):
        rebuild_page_minmax_kernel[(touched_pages(width, page_size), heads, batch)](
            k, lengths.contiguous(), starts.contiguous(), *bounds, *k.stride(), *bounds.minimum.stride(),
            *bounds.maximum.stride(), size, bounds.minimum.shape[2],
            PAGE_SIZE=page_size, BLOCK_PAGE=triton.next_power_of_2(page_size), DIM=dim,
            BLOCK_DIM=triton.next_power_of_2(dim), num_warps=4 if page_size > 16 else 2,
            **overlap_settings(True, k.device),
        )  # fmt: skip
