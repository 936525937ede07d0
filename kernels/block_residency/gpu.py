"""The difference between a new selection and the blocks at hand as a Triton kernel, one program a list."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.block_residency.naive import Arrivals, BlockQueue, Residents
from longdecode.kernels.overlap import can_overlap, let_next_start

_NEVER = tl.constexpr(0x7FFFFFFFFFFFFFFF)
MAX_SLOTS = 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """Entries of a list that a program compares with all slots at a time, and its warps."""

    entries: int = 64
    num_warps: int = 8


def choose_launch(slots: int) -> Launch:
    """Choose entries so that the comparison stays in registers: at most 8,192 pairs, and a list of 64 at once."""
    return Launch(entries=max(4, min(64, 8192 // triton.next_power_of_2(slots))))


@triton.jit
def claim_slots_kernel(
    p_indices, p_counts, p_held, p_used, p_clock, p_fetched, p_slots, p_state, p_entries,
    p_sources, p_targets, p_queued,
    index_batch, index_list, index_entry, count_batch, count_list, lists, width, slots, blocks,
    BLOCK_SLOTS: tl.constexpr, ENTRIES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compare ``list[n] == held[s]``; give missing entries the slots of least ``used``, which a sort brings forward.

    With ``PDL`` the next kernel, which waits for this one's end, is made ready meanwhile.

    Grid ``(B * Hkv,)``. Tensors are those of ``naive.claim_slots``, ``p_indices`` and ``p_counts`` with any strides,
    ``p_slots`` ``[B, Hkv, N]`` contiguous, all int64; ``p_state`` likewise, int32, and ``p_entries``, or None. Two
    passes over the list, the first finds what is wanted. Moves two lists, and three times the slots' blocks and times.
    """
    let_next_start(PDL)
    i_list = tl.program_id(0).to(tl.int64)
    i_batch = i_list // lists
    i_head = i_list % lists
    count = tl.minimum(tl.load(p_counts + i_batch * count_batch + i_head * count_list), width)
    now = tl.load(p_clock)
    p_indices += i_batch * index_batch + i_head * index_list
    o_slot = tl.arange(0, BLOCK_SLOTS)
    real = o_slot < slots
    b_held = tl.load(p_held + i_list * slots + o_slot, mask=real, other=-1)
    b_used = tl.load(p_used + i_list * slots + o_slot, mask=real, other=0)
    newest = tl.load(p_held + i_list * slots + slots - 1)
    b_wanted = tl.zeros([BLOCK_SLOTS], dtype=tl.int32)
    for first in range(0, width, ENTRIES):
        o_entry = first + tl.arange(0, ENTRIES)
        b_block = tl.load(p_indices + o_entry * index_entry, mask=o_entry < count, other=-1)
        valid = (b_block >= 0) & (b_block <= newest)
        b_match = (b_block[:, None] == b_held[None, :]) & valid[:, None]
        b_at = tl.min(tl.where(b_match, o_slot[None, :], BLOCK_SLOTS), 1)
        b_wanted = tl.maximum(b_wanted, tl.max((b_at[:, None] == o_slot[None, :]).to(tl.int32), 0))
    spoken = (b_wanted > 0) | (o_slot >= slots - 1)
    b_age = tl.sort(tl.where(spoken, _NEVER, (b_used + 1) * BLOCK_SLOTS + o_slot))
    b_victim = (b_age % BLOCK_SLOTS).to(tl.int32)
    free = tl.sum((b_age != _NEVER).to(tl.int32), 0)
    tl.store(p_used + i_list * slots + o_slot, now, mask=real & (b_wanted > 0))
    taken = 0
    for first in range(0, width, ENTRIES):
        o_entry = first + tl.arange(0, ENTRIES)
        b_block = tl.load(p_indices + o_entry * index_entry, mask=o_entry < count, other=-1)
        valid = (b_block >= 0) & (b_block <= newest)
        b_match = (b_block[:, None] == b_held[None, :]) & valid[:, None]
        b_at = tl.min(tl.where(b_match, o_slot[None, :], BLOCK_SLOTS), 1)
        b_missing = (valid & (b_at == BLOCK_SLOTS)).to(tl.int32)
        b_rank = taken + tl.cumsum(b_missing, 0) - 1
        claimed = (b_missing > 0) & (b_rank < free)
        b_fresh = tl.sum(tl.where(b_rank[:, None] == o_slot[None, :], b_victim[None, :], 0), 1)
        b_chosen = tl.where(b_at < BLOCK_SLOTS, b_at, tl.where(claimed, b_fresh, 0)).to(tl.int64)
        tl.store(p_slots + i_list * width + o_entry, b_chosen, mask=o_entry < width)
        if p_state is not None:
            tl.store(p_state + i_list * width + o_entry, claimed.to(tl.int32), mask=o_entry < width)
        tl.store(p_held + i_list * slots + b_chosen, b_block, mask=claimed)
        tl.store(p_used + i_list * slots + b_chosen, now + tl.zeros_like(b_chosen), mask=claimed)
        found = tl.sum(claimed.to(tl.int32), 0)
        if found > 0:
            base = tl.atomic_add(p_queued, found.to(tl.int64), sem="relaxed")
            tl.atomic_add(p_fetched + i_batch, found.to(tl.int64), sem="relaxed")
            o_queue = base + (b_rank - taken)
            tl.store(p_sources + o_queue, i_list * blocks + b_block, mask=claimed)
            tl.store(p_targets + o_queue, i_list * slots + b_chosen, mask=claimed)
            if p_state is not None:
                tl.store(p_entries + o_queue, i_list * width + o_entry, mask=claimed)
        taken += tl.sum(b_missing, 0)


def claim_slots_gpu(
    indices: Tensor,
    counts: Tensor,
    residents: Residents,
    queue: BlockQueue,
    blocks: int,
    arrivals: Arrivals | None = None,
    launch: Launch | None = None,
) -> Tensor:
    """Return slots and queue what is missing as in ``naive.claim_slots``; a CUDA graph can capture it.

    Raises:
        ValueError: more slots a list than one program compares.
    """
    batch, heads, width = indices.shape
    slots = residents.blocks.shape[2]
    if slots > MAX_SLOTS:
        raise ValueError(f"{slots} slots a list; at most {MAX_SLOTS}")
    launch = launch or choose_launch(slots)
    chosen = torch.empty(indices.shape, dtype=torch.int64, device=indices.device)
    with torch.cuda.device_of(indices):
        claim_slots_kernel[(batch * heads,)](
            indices, counts, residents.blocks, residents.used, residents.clock, residents.fetched, chosen,
            *((None, None) if arrivals is None else (arrivals.state, arrivals.entries)),
            queue.sources, queue.targets, queue.count,
            *indices.stride(), *counts.stride(), heads, width, slots, blocks,
            BLOCK_SLOTS=triton.next_power_of_2(slots), ENTRIES=launch.entries, num_warps=launch.num_warps,
            # The copy that announces its blocks follows.
            PDL=arrivals is not None and can_overlap(indices.device),
        )  # fmt: skip
    return chosen
