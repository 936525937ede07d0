"""Page bounds as Triton kernels: one pass over a prompt's keys, one launch for a block of appended keys."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.page_minmax.naive import PageBounds


@dataclass(frozen=True, slots=True)
class MinmaxLaunch:
    """Launch constants of the build: pages a program, loads in flight a thread (tokens of a page), warps."""

    pages: int
    tokens: int
    num_warps: int


def choose_launch(page_size: int, dim: int) -> MinmaxLaunch:
    """Choose constants for pages of ``page_size``; sized by hand, not tuned: 16 bytes a thread and load at 4 warps."""
    pages = max(1, min(32, 1024 // triton.next_power_of_2(dim)))
    return MinmaxLaunch(pages, min(8, triton.next_power_of_2(page_size)), num_warps=4)


@triton.jit
def build_page_minmax_kernel(
    p_k, p_lengths, p_minimum, p_maximum, k_batch, k_head, k_token, k_dim, heads, size, pages, page_size,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_PAGES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """``m_j = min_{i in page j} k_i`` and ``M_j`` of a tile of pages; grid ``(page tiles, B * H)``.

    ``p_k`` ``[B, H, S, D]`` float32, float16 or bfloat16, any strides; ``p_lengths`` ``[B]`` integer; ``p_minimum``
    and ``p_maximum`` ``[B, H, P, D]`` in the keys' dtype, contiguous. Pages without a token get zeros. Moves
    ``sum(lengths) * H * D`` elements in and ``2 * B * H * P * D`` out.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3.
    """
    i_list = tl.program_id(1).to(tl.int64)
    o_page = tl.program_id(0) * BLOCK_PAGES + tl.arange(0, BLOCK_PAGES)
    o_dim = tl.arange(0, BLOCK_DIM)
    length = tl.minimum(tl.load(p_lengths + i_list // heads), size)
    p_k += (i_list // heads) * k_batch + (i_list % heads) * k_head
    o_first = o_page.to(tl.int64) * page_size
    b_minimum = tl.full([BLOCK_PAGES, BLOCK_DIM], float("inf"), dtype=tl.float32)
    b_maximum = tl.full([BLOCK_PAGES, BLOCK_DIM], float("-inf"), dtype=tl.float32)
    for i_first in range(0, page_size, TOKENS):
        for i_step in tl.static_range(0, TOKENS):
            i_token = i_first + i_step
            stored = (o_first + i_token < length) & (i_token < page_size)
            loaded = stored[:, None] if DIM == BLOCK_DIM else stored[:, None] & (o_dim < DIM)[None, :]
            o_keys = (o_first + i_token)[:, None] * k_token + (o_dim * k_dim)[None, :]
            b_k = tl.load(p_k + o_keys, mask=loaded, other=0.0).to(tl.float32)
            b_least = tl.minimum(b_minimum, b_k, propagate_nan=tl.PropagateNan.ALL)
            b_most = tl.maximum(b_maximum, b_k, propagate_nan=tl.PropagateNan.ALL)
            b_minimum = tl.where(stored[:, None], b_least, b_minimum)
            b_maximum = tl.where(stored[:, None], b_most, b_maximum)
    used = (o_first < length)[:, None]
    b_minimum = tl.where(used, b_minimum, 0.0)
    b_maximum = tl.where(used, b_maximum, 0.0)
    o_out = (i_list * pages + o_page)[:, None] * DIM + o_dim[None, :]
    written = (o_page < pages)[:, None] if DIM == BLOCK_DIM else (o_page < pages)[:, None] & (o_dim < DIM)[None, :]
    tl.store(p_minimum + o_out, b_minimum.to(p_minimum.dtype.element_ty), mask=written)
    tl.store(p_maximum + o_out, b_maximum.to(p_maximum.dtype.element_ty), mask=written)


@triton.jit
def update_page_minmax_kernel(
    p_k, p_slots, p_minimum, p_maximum, k_batch, k_head, k_token, k_dim, slot_batch, slot_head, slot_token,
    m_batch, m_head, m_page, m_dim, x_batch, x_head, x_page, x_dim, tokens, pages,
    PAGE_SIZE: tl.constexpr, BLOCK_PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    """``m = min(m, k)`` and ``M = max(M, k)`` of the pages that a block of keys fell in; a page's first key replaces.

    Grid ``(H, B, T)``; of the tokens of one page the first does the work. ``p_k`` ``[B, H, S, D]`` is the cache that
    holds the keys, ``p_minimum`` (strides ``m_*``) and ``p_maximum`` (``x_*``) ``[B, H, P, D]`` float32, float16 or
    bfloat16; ``p_slots`` ``[B, H, T]`` int64. Moves ``B * H * T * D`` elements in and four times the pages touched.
    """
    i_head = tl.program_id(0).to(tl.int64)
    i_batch = tl.program_id(1).to(tl.int64)
    i_token = tl.program_id(2)
    o_dim = tl.arange(0, BLOCK_DIM)
    o_step = tl.arange(0, BLOCK_PAGE)
    p_slots += i_batch * slot_batch + i_head * slot_head
    slot = tl.load(p_slots + i_token.to(tl.int64) * slot_token)
    page = slot // PAGE_SIZE
    o_back = i_token - 1 - o_step
    b_back = tl.load(p_slots + o_back.to(tl.int64) * slot_token, mask=(o_back >= 0) & (o_step < PAGE_SIZE), other=-1)
    followed = tl.sum(((b_back >= 0) & (b_back // PAGE_SIZE == page)).to(tl.int32), 0)
    if (slot >= 0) & (page < pages) & (followed == 0):
        o_token = i_token + o_step
        b_slot = tl.load(p_slots + o_token.to(tl.int64) * slot_token, mask=o_token < tokens, other=-1)
        member = (b_slot >= 0) & (b_slot // PAGE_SIZE == page) & (o_step < PAGE_SIZE)
        fresh = tl.sum((member & (b_slot % PAGE_SIZE == 0)).to(tl.int32), 0) > 0
        inside = o_dim < DIM
        o_k = b_slot[:, None] * k_token + (o_dim * k_dim)[None, :]
        p_k += i_batch * k_batch + i_head * k_head
        b_k = tl.load(p_k + o_k, mask=member[:, None] & inside[None, :], other=0.0).to(tl.float32)
        p_least = p_minimum + i_batch * m_batch + i_head * m_head + page * m_page + o_dim * m_dim
        p_most = p_maximum + i_batch * x_batch + i_head * x_head + page * x_page + o_dim * x_dim
        # A fresh page's old bounds are not read: they may hold anything.
        old = inside & (fresh == 0)
        b_least = tl.min(tl.where(member[:, None], b_k, float("inf")), 0)
        b_most = tl.max(tl.where(member[:, None], b_k, float("-inf")), 0)
        b_least = tl.minimum(b_least, tl.load(p_least, mask=old, other=float("inf")).to(tl.float32))
        b_most = tl.maximum(b_most, tl.load(p_most, mask=old, other=float("-inf")).to(tl.float32))
        tl.store(p_least, b_least.to(p_minimum.dtype.element_ty), mask=inside)
        tl.store(p_most, b_most.to(p_maximum.dtype.element_ty), mask=inside)


def build_page_minmax_gpu(
    k: Tensor, lengths: Tensor, page_size: int, *, launch: MinmaxLaunch | None = None
) -> PageBounds:
    """Bounds of every page of a cache as in ``naive.build_page_minmax``, bit by bit, in one pass over the keys.

    Args:
        k: ``[B, H, S, D]``, float32, float16 or bfloat16, any strides.
        lengths: ``[B]`` integers; a length over ``S`` counts as ``S``.
        page_size: tokens in a page.
        launch: launch constants; from the shapes when left out.

    Returns:
        Bounds ``[B, H, ceil(S / page_size), D]``.
    """
    batch, heads, size, dim = k.shape
    pages = triton.cdiv(size, page_size)
    launch = launch or choose_launch(page_size, dim)
    bounds = PageBounds(*(torch.empty(batch, heads, pages, dim, dtype=k.dtype, device=k.device) for _ in range(2)))
    with torch.cuda.device_of(k):
        build_page_minmax_kernel[(triton.cdiv(pages, launch.pages), batch * heads)](
            k, lengths.contiguous(), *bounds, *k.stride(), heads, size, pages, page_size,
            DIM=dim, BLOCK_DIM=triton.next_power_of_2(dim), BLOCK_PAGES=launch.pages, TOKENS=launch.tokens,
            num_warps=launch.num_warps,
        )  # fmt: skip
    return bounds


def update_page_minmax_gpu(bounds: PageBounds, k_cache: Tensor, slots: Tensor, page_size: int) -> None:
    """Widen pages by the keys that a block stored, as in ``naive.update_page_minmax``, in place and in one launch.

    Args:
        bounds: ``[B, H, P, D]`` twice, any strides.
        k_cache: ``[B, H, S, D]`` in the bounds' dtype, any strides, the block's keys stored in it.
        slots: ``[B, H, T]`` int64, those of a row and head ascending by one; slots outside the pages are skipped.
        page_size: tokens in a page.
    """
    (batch, heads, tokens), dim = slots.shape, k_cache.shape[3]
    with torch.cuda.device_of(k_cache):
        update_page_minmax_kernel[(heads, batch, tokens)](
            k_cache, slots, *bounds, *k_cache.stride(), *slots.stride(), *bounds.minimum.stride(),
            *bounds.maximum.stride(), tokens, bounds.minimum.shape[2],
            PAGE_SIZE=page_size, BLOCK_PAGE=triton.next_power_of_2(page_size),
            DIM=dim, BLOCK_DIM=triton.next_power_of_2(dim), num_warps=4 if page_size > 16 else 1,
        )  # fmt: skip
