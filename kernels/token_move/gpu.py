"""Moves of tokens between slots of caches as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.token_move.naive import PartialSlots


@triton.jit
def move_tokens_kernel(
    p_k, p_v, p_k_to, p_v_to, p_starts, p_rows, p_kept, p_held, p_newer,
    from_layer, from_batch, from_head, from_token, to_layer, to_batch, to_head, to_token, row_batch,
    batch, heads, size, budget,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, FILL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Move up to ``WIDTH`` tokens of one KV head of one layer; all are read before one is written.

    ``p_k`` and ``p_v`` ``[L, B, Hkv, S, D]`` share strides and a dtype, the targets likewise; channels are contiguous.
    ``p_starts``, ``p_kept``, ``p_held``, ``p_newer`` ``[B]`` and ``p_rows`` ``[B, WIDTH]`` int64. With ``FILL`` the
    first ``kept`` tokens go to a partial cache (see ``naive.PartialSlots``), else rows to the block's first slots.
    Grid ``(L * B * Hkv,)``. Moves ``4 * L * B * Hkv * WIDTH * D`` elements.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_head = tl.program_id(0).to(tl.int64) % heads
    i_batch = tl.program_id(0).to(tl.int64) // heads % batch
    i_layer = tl.program_id(0).to(tl.int64) // heads // batch
    o_place = tl.arange(0, BLOCK)
    o_dim = tl.arange(0, BLOCK_DIM)
    b_start = tl.load(p_starts + i_batch)
    if FILL:
        taken = (o_place < WIDTH) & (o_place < tl.load(p_kept + i_batch))
        b_since = tl.load(p_newer + i_batch) + o_place
        b_held = tl.load(p_held + i_batch)
        b_from = b_start + o_place
        b_to = tl.maximum(tl.where(b_since < budget - b_held, b_held + b_since, budget - 1 - b_since), 0)
    else:
        taken = o_place < WIDTH
        b_from = b_start + tl.load(p_rows + i_batch * row_batch + o_place, mask=taken, other=0)
        b_to = tl.minimum(b_start + o_place, size - 1)
    b_from = tl.minimum(b_from, size - 1)
    at_from = i_layer * from_layer + i_batch * from_batch + i_head * from_head
    at_to = i_layer * to_layer + i_batch * to_batch + i_head * to_head
    o_from = at_from + (b_from * from_token)[:, None] + o_dim[None, :]
    o_to = at_to + (b_to * to_token)[:, None] + o_dim[None, :]
    inside = taken[:, None] & (o_dim < DIM)[None, :]
    b_k = tl.load(p_k + o_from, mask=inside, other=0.0)
    b_v = tl.load(p_v + o_from, mask=inside, other=0.0)
    tl.debug_barrier()
    tl.store(p_k_to + o_to, b_k, mask=inside)
    tl.store(p_v_to + o_to, b_v, mask=inside)


def compact_tokens_gpu(k: Tensor, v: Tensor, starts: Tensor, rows: Tensor) -> None:
    """Compact as in ``naive.compact_tokens``, in one launch; channels contiguous, ``k`` and ``v`` of equal strides."""
    _move(k, v, k, v, starts, rows, rows, rows, rows, rows.shape[1], 0, fill=False)


def fill_tokens_gpu(k: Tensor, v: Tensor, starts: Tensor, kept: Tensor, width: int, into: PartialSlots) -> None:
    """Fill as in ``naive.fill_tokens``, in one launch; both caches as in ``compact_tokens_gpu``."""
    _move(k, v, into.k, into.v, starts, kept, kept, into.held, into.newer, width, into.budget, fill=True)


def _move(
    k: Tensor, v: Tensor, k_to: Tensor, v_to: Tensor, starts: Tensor, rows: Tensor, kept: Tensor, held: Tensor,
    newer: Tensor, width: int, budget: int, *, fill: bool,
) -> None:  # fmt: skip
    for name, one, other in (("source", k, v), ("target", k_to, v_to)):
        if one.stride() != other.stride() or one.stride(4) != 1:
            raise ValueError(f"{name}: keys and values of one layout are needed, got {one.stride()}, {other.stride()}")
    layers, batch, heads, size, dim = k.shape
    with torch.cuda.device_of(k):
        move_tokens_kernel[(layers * batch * heads,)](
            k, v, k_to, v_to, starts, rows, kept, held, newer, *k.stride()[:4], *k_to.stride()[:4], rows.stride(0),
            batch, heads, size, budget, WIDTH=width, BLOCK=triton.next_power_of_2(width), DIM=dim,
            BLOCK_DIM=triton.next_power_of_2(dim), FILL=fill, num_warps=2, **overlap_settings(True, k.device),
        )  # fmt: skip
