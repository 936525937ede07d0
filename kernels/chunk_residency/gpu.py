"""Slots of listed chunks as a Triton kernel, one program a list."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.block_residency.naive import BlockQueue
from longdecode.kernels.chunk_residency.naive import ChunkResidents, check_room


@triton.jit
def claim_chunks_kernel(
    p_indices, p_counts, p_held, p_slot_of, p_fetched, p_out, p_sources, p_targets, p_queued,
    index_batch, index_list, index_entry, count_batch, count_list, out_batch, out_list,
    lists, width, slots, chunks,
    ENTRIES: tl.constexpr, BLOCK_SLOTS: tl.constexpr,
):  # fmt: skip
    """Look up ``slot_of[chunk]``; missing entries take, in order, the slots whose chunk no entry names.

    Grid ``(B * Hkv,)``. ``p_indices`` and ``p_counts`` int64 of any strides, ``p_held`` ``[B, Hkv, S + 1]`` and
    ``p_slot_of`` ``[B, Hkv, C + 1]`` int32, ``p_out`` and the queue int64. The spare entry of ``held`` is not used.
    While a program runs, ``held`` of a slot that stays is ``-2 - chunk``; free slots reach the entries that take them
    through the queue's targets. Moves a list and its slots about three times, through L2.
    """
    i_list = tl.program_id(0).to(tl.int64)
    i_batch = i_list // lists
    i_head = i_list % lists
    count = tl.minimum(tl.load(p_counts + i_batch * count_batch + i_head * count_list), width)
    p_held += i_list * (slots + 1)
    p_slot_of += i_list * (chunks + 1)
    o_entry = tl.arange(0, ENTRIES)
    valid = o_entry < count
    b_chunk = tl.load(
        p_indices + i_batch * index_batch + i_head * index_list + o_entry * index_entry, mask=valid, other=0
    )
    b_at = tl.load(p_slot_of + b_chunk, mask=valid, other=-1)
    hit = valid & (b_at >= 0)
    missing = valid & (b_at < 0)
    b_rank = tl.cumsum(missing.to(tl.int32), 0) - 1
    wanted = tl.sum(missing.to(tl.int32), 0)
    o_slot = tl.arange(0, BLOCK_SLOTS)
    real = o_slot < slots
    b_held = tl.load(p_held + o_slot, mask=real, other=-1)
    # All reads above are done before a mark is set, and all marks are set before they are looked at.
    tl.debug_barrier()
    tl.store(p_held + b_at, (-2 - b_chunk).to(tl.int32), mask=hit)
    tl.debug_barrier()
    b_mark = tl.load(p_held + o_slot, mask=real, other=-2)
    free = real & (b_mark > -2)
    b_free_rank = tl.cumsum(free.to(tl.int32), 0) - 1
    taken = free & (b_free_rank < wanted)
    tl.store(p_slot_of + b_held, tl.full([BLOCK_SLOTS], -1, dtype=tl.int32), mask=taken & (b_held >= 0))
    tl.debug_barrier()
    tl.store(p_held + o_slot, b_held, mask=real & (b_mark <= -2))
    base = tl.atomic_add(p_queued, wanted.to(tl.int64), sem="relaxed")
    tl.atomic_add(p_fetched + i_batch, wanted.to(tl.int64), sem="relaxed")
    tl.store(p_targets + base + b_free_rank, i_list * slots + o_slot, mask=taken)
    tl.debug_barrier()
    b_fresh = tl.load(p_targets + base + b_rank, mask=missing, other=0) - i_list * slots
    b_fresh = tl.where(missing, b_fresh, 0)
    tl.store(p_held + b_fresh, b_chunk.to(tl.int32), mask=missing)
    tl.store(p_slot_of + b_chunk, b_fresh.to(tl.int32), mask=missing)
    tl.store(p_sources + base + b_rank, i_list * chunks + b_chunk, mask=missing)
    b_slot = tl.where(hit, b_at.to(tl.int64), b_fresh)
    tl.store(p_out + i_batch * out_batch + i_head * out_list + o_entry, b_slot, mask=valid)


def claim_chunks_gpu(
    indices: Tensor,
    counts: Tensor,
    residents: ChunkResidents,
    queue: BlockQueue,
    out: Tensor,
) -> None:
    """Write slots and queue what is missing as in ``naive.claim_chunks``; a CUDA graph can capture it.

    Raises:
        ValueError: a list is longer than there are slots or entries of ``out``, or those of ``out`` are apart.
    """
    check_room(indices, residents, out)
    if out.stride(2) != 1:
        raise ValueError(f"entries of the output lie {out.stride(2)} apart; they must be contiguous")
    batch, heads, width = indices.shape
    with torch.cuda.device_of(indices):
        claim_chunks_kernel[(batch * heads,)](
            indices, counts, residents.held, residents.slot_of, residents.fetched, out,
            queue.sources, queue.targets, queue.count,
            *indices.stride(), *counts.stride(), *out.stride()[:2], heads, width, residents.slots, residents.chunks,
            ENTRIES=triton.next_power_of_2(width), BLOCK_SLOTS=triton.next_power_of_2(residents.slots),
            # A thread holds at most eight entries of a list of up to 8,192.
            num_warps=max(1, min(32, triton.next_power_of_2(max(width, residents.slots)) // 64)),
        )  # fmt: skip
