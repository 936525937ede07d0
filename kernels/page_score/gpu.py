"""Page scores as a Triton kernel, reduced over the query group before they are written."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, wait_for_earlier
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.score_rows import ScoreLaunch, load_keys, score_keys, store_scores


@triton.jit
def page_score_kernel(
    p_q, p_minimum, p_maximum, p_pages, p_out,
    q_batch, q_head, q_dim, m_batch, m_head, m_page, m_dim, x_batch, x_head, x_page, x_dim,
    p_k_scale, rows, kv_heads, num_pages,
    REDUCE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Bound ``q . k`` over tiles of pages of one KV head: ``score_j = sum_i max(q_i m_{j,i}, q_i M_{j,i})``.

    Computed as ``M max(q, 0)^T + m min(q, 0)^T``; ``REDUCE`` is ``max``, ``sum`` or ``mean`` over the head's ``rows``
    queries, or ``none``. Grid ``(page tiles / TILES, B * Hkv)``; pages past ``p_pages[b]`` score minus infinity unread.

    ``p_q`` ``[B, Hq, 1, D]``, ``p_minimum`` (strides ``m_*``) and ``p_maximum`` (``x_*``) ``[B, Hkv, P, D]`` float32,
    float16 or bfloat16, or codes in e4m3 with ``p_k_scale`` ``[B, Hkv, D]`` float32, which meet scaled queries in
    float16; ``p_pages`` ``[B]`` integer; ``p_out`` ``[B, Hkv or Hq, P]`` float32, contiguous. Moves
    ``2 * sum(pages) * Hkv * D`` elements in.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), algorithm 1.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_list = tl.program_id(1).to(tl.int64)
    i_batch = i_list // kv_heads
    i_head = i_list % kv_heads
    o_row = tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    used = tl.minimum(tl.load(p_pages + i_batch), num_pages)
    p_minimum += i_batch * m_batch + i_head * m_head
    p_maximum += i_batch * x_batch + i_head * x_head

    o_q = (i_batch * q_batch + (i_head * rows + o_row) * q_head)[None, :] + (o_dim * q_dim)[:, None]
    b_q = tl.load(p_q + o_q, mask=(o_row < rows)[None, :] & (o_dim < DIM)[:, None], other=0.0)
    if p_k_scale is not None:
        b_q = b_q.to(tl.float32) * tl.load(p_k_scale + i_list * DIM + o_dim, mask=o_dim < DIM, other=0.0)[:, None]
        b_q = b_q if p_q.dtype.element_ty == tl.float32 else b_q.to(tl.float16)
    elif UPCAST:
        b_q = b_q.to(tl.float32)
    b_positive = tl.maximum(b_q, 0.0).to(b_q.dtype)
    b_negative = tl.minimum(b_q, 0.0).to(b_q.dtype)
    for i_tile in tl.range(0, TILES, num_stages=STAGES):
        o_page = (tl.program_id(0) * TILES + i_tile) * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
        visible = o_page < used
        b_maximum = load_keys(p_maximum, o_page, x_page, o_dim, x_dim, visible, DIM, BLOCK_DIM)
        b_minimum = load_keys(p_minimum, o_page, m_page, o_dim, m_dim, visible, DIM, BLOCK_DIM)
        b_scores = tl.dot(b_maximum.to(b_q.dtype), b_positive, input_precision="ieee")
        b_scores = tl.dot(b_minimum.to(b_q.dtype), b_negative, b_scores, input_precision="ieee")
        store_scores(p_out, b_scores, visible, i_list, o_row, o_page, rows, num_pages, REDUCE)


def page_score_gpu(
    q: Tensor, bounds: PageBounds, pages: Tensor, *, group: str | None = None, k_scale: Tensor | None = None,
    launch: ScoreLaunch | None = None,
) -> Tensor:  # fmt: skip
    """Upper bounds of ``q . k`` over pages as in ``naive.page_score``, in one pass over the bounds.

    Args:
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        bounds: minimum and maximum, ``[B, Hkv, P, D]`` in ``q``'s dtype, or with ``k_scale`` in e4m3, any strides.
        pages: ``[B]`` integers, pages in use in each row; the others score minus infinity.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head; ``None`` keeps one score per query head.
        k_scale: ``[B, Hkv, D]`` float32, contiguous, where bounds are codes.
        launch: launch constants; from the shapes when left out.

    Returns:
        ``[B, Hq, P]``, or ``[B, Hkv, P]`` under a group reduction, in float32.

    Raises:
        ValueError: the group reduction is unknown, the heads do not divide, there is more than one query row or the
            dtypes differ.
    """
    if not (q.dtype if k_scale is None else torch.float8_e4m3fn) == bounds.minimum.dtype == bounds.maximum.dtype:
        raise ValueError(f"queries {q.dtype} and bounds {bounds.minimum.dtype} of one dtype are needed")
    return score_keys(page_score_kernel, q, bounds, pages, group, launch, k_scale)
