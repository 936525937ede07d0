"""The chosen experts' projections as Triton kernels."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.experts.naive import route
from longdecode.kernels.layout import needs_upcast
from longdecode.kernels.linear.gpu import gate, load_weight


@triton.jit
def experts_kernel(
    p_x, p_weight, p_order, p_ends, p_out, width, K: tl.constexpr, PER_ROW: tl.constexpr, GATED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """``BLOCK_N`` outputs of every pair of a row and an expert that one expert has: ``y_pn = sum_k x_pk W_enk``.

    Gated, ``silu(sum x_k G_nk) * sum x_k U_nk``. Grid ``(ceil(N / BLOCK_N), E)``: a program of an expert that nobody
    chose ends at once, so that nothing depends on the choice but what is read. ``p_order`` ``[pairs]`` int64 lists the
    pairs by expert, ``p_ends`` ``[E]`` int64 has where each expert's list ends. ``p_x`` ``[pairs / PER_ROW, K]``,
    ``p_weight`` ``[E, N, K]`` (gated ``[E, 2N, K]``, the gate's rows first) and ``p_out`` ``[pairs, N]`` contiguous,
    in one of float32, float16 and bfloat16. Moves a chosen expert's weight once for ``BLOCK_ROWS`` pairs.
    """
    i_expert = tl.program_id(1)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    up = width * K
    # Programs past the edge repeat the last row: loads without a mask stay whole vectors.
    p_rows = p_weight + i_expert.to(tl.int64) * (2 * up if GATED else up) + tl.minimum(o_n, width - 1)[None, :] * K
    first = tl.load(p_ends + i_expert - 1, mask=i_expert > 0, other=0)
    last = tl.load(p_ends + i_expert)
    for start in range(first, last, BLOCK_ROWS):
        o_pair = start + tl.arange(0, BLOCK_ROWS)
        inside = o_pair < last
        # Past the list the first pair's row is read, and nothing written: rows of a product do not mix.
        i_pair = tl.load(p_order + o_pair, mask=inside, other=0)
        b_first = tl.zeros([BLOCK_ROWS, BLOCK_N], dtype=tl.float32)
        b_second = tl.zeros([BLOCK_ROWS, BLOCK_N], dtype=tl.float32)
        for i_k in range(0, K, BLOCK_K):
            o_k = i_k + tl.arange(0, BLOCK_K)
            b_x = tl.load(p_x + (i_pair // PER_ROW)[:, None] * K + o_k[None, :], mask=(o_k < K)[None, :], other=0.0)
            b_weight, b_up = load_weight(p_rows, 1, up, o_k[:, None], K, "", GATED)
            if UPCAST:
                b_x, b_weight, b_up = b_x.to(tl.float32), b_weight.to(tl.float32), b_up.to(tl.float32)
            b_first = tl.dot(b_x, b_weight, b_first, input_precision="ieee")
            if GATED:
                b_second = tl.dot(b_x, b_up, b_second, input_precision="ieee")
        if GATED:
            b_first = gate(b_first, b_second, p_out.dtype.element_ty)
        p_to = p_out + i_pair[:, None] * width + o_n[None, :]
        tl.store(p_to, b_first.to(p_out.dtype.element_ty), mask=inside[:, None] & (o_n < width)[None, :])


def experts_gpu(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, per_row: int, normalise: bool) -> Tensor:
    """Send rows through their experts as in ``naive.experts``; shapes depend on no choice, and the host waits for none.

    Args:
        x, router, gate_up, down, per_row, normalise: as of ``naive.experts``, in float32, float16 or bfloat16; the
            experts' matrices contiguous.

    Returns:
        ``[..., H]`` in ``x``'s dtype.
    """
    rows = x.flatten(0, -2).contiguous()
    weights, chosen = route(rows, router, per_row, normalise)
    by_expert, order = chosen.flatten().sort()
    ends = torch.searchsorted(by_expert, torch.arange(len(router), device=x.device), right=True)
    inner = _project(rows, gate_up, order, ends, per_row, gated=True)
    results = _project(inner, down, order, ends, 1, gated=False)
    return torch.bmm(weights[:, None], results.view(*chosen.shape, -1)).view(x.shape)


def _project(x: Tensor, weight: Tensor, order: Tensor, ends: Tensor, per_row: int, gated: bool) -> Tensor:
    """Project the row of each pair by the pair's expert, ``[pairs, N]``."""
    (count, width, channels), pairs = weight.shape, len(order)
    width, block_rows, block_n = width // (1 + gated), *((16, 32) if pairs <= 16 * count else (64, 64))
    out = torch.empty((pairs, width), dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        experts_kernel[(triton.cdiv(width, block_n), count)](
            x, weight, order, ends, out, width, K=channels, PER_ROW=per_row, GATED=gated, BLOCK_ROWS=block_rows,
            BLOCK_N=block_n, BLOCK_K=128 // x.element_size(), num_warps=4, num_stages=3,
            UPCAST=needs_upcast(x),
        )  # fmt: skip
    return out
