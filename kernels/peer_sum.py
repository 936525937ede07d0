"""A small sum over the GPUs of a host as one Triton kernel, which writes into its peers' memory.

NCCL takes 11 us for the 10 KB of a layer on two H200, torch's one-shot sum 7 us, and both cut the chain of overlapping
launches (``overlap.py``) twice a layer; this one keeps it. It has run in Triton's interpreter, with peers played by
hand, and has compiled for Hopper, but not yet on two GPUs: ``LONGDECODE_PEER_SUM=1`` asks for it, NCCL serves without.
GPUs need native atomics between them, as NVLink has.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import os
from itertools import permutations, starmap
from typing import cast

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier

BLOCK = 1024
CAPACITY = 256 * BLOCK
"""Elements of the largest part; NCCL is as fast for larger ones."""


@triton.jit
def peer_sum_kernel(
    p_part, buffers, flags, p_calls, numel,
    RANK: tl.constexpr, WORLD: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``part_r = sum_r part_r`` on every rank, in float32 and in the order of ranks, so that all get the same bits.

    Grid ``ceil(numel / BLOCK)``; ``p_part`` ``[numel]``, changed in place. ``buffers`` and ``flags`` are addresses, one
    of each rank: of ``[2, WORLD, CAPACITY]`` in the part's dtype and of ``[CAPACITY / BLOCK, WORLD]`` int32. A program
    writes its elements into its own slot of every buffer, raises its flag there to the number of this
    call (``p_calls`` ``[CAPACITY / BLOCK]`` counts them), and reads its own buffer once all flags there have come to
    it. Two halves of the buffer take turns: who writes the same half again has seen the flags of the call between, so
    that its peers have read this one's. Moves ``WORLD - 1`` parts to peers.
    """
    i_block = tl.program_id(0)
    o_part = i_block * BLOCK + tl.arange(0, BLOCK)
    inside = o_part < numel
    dtype = p_part.dtype.element_ty
    let_next_start(PDL)
    wait_for_earlier(PDL)
    call = tl.load(p_calls + i_block) + 1
    half = (call & 1) * (WORLD * CAPACITY)
    b_part = tl.load(p_part + o_part, mask=inside)
    for i in tl.static_range(WORLD):
        p_slot = tl.multiple_of(buffers[i].to(tl.pointer_type(dtype)) + half + RANK * CAPACITY, 16)
        tl.store(p_slot + o_part, b_part, mask=inside)
    tl.debug_barrier()  # also: all threads have read the number that one now writes
    tl.store(p_calls + i_block, call)
    for i in tl.static_range(WORLD):
        p_flag = flags[i].to(tl.pointer_type(tl.int32)) + i_block * WORLD + RANK
        tl.atomic_xchg(p_flag, call, sem="release", scope="sys")
    p_flag = flags[RANK].to(tl.pointer_type(tl.int32)) + i_block * WORLD
    for i in tl.static_range(WORLD):
        while tl.atomic_add(p_flag + i, 0, sem="acquire", scope="sys") - call < 0:  # also where numbers wrap
            pass
    tl.debug_barrier()
    p_buffer = tl.multiple_of(buffers[RANK].to(tl.pointer_type(dtype)) + half, 16)
    b_sum = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(WORLD):
        b_sum += tl.load(p_buffer + i * CAPACITY + o_part, mask=inside, other=0.0, volatile=True).to(tl.float32)
    tl.store(p_part + o_part, b_sum.to(dtype), mask=inside)


def peer_sums(world: int, device: torch.device) -> bool:
    """Return whether they are asked for and the first ``world`` CUDA devices reach each other's memory; no CPU does."""
    pairs = permutations(range(world), 2)
    return (
        "LONGDECODE_PEER_SUM" in os.environ
        and device.type == "cuda"
        and all(starmap(torch.cuda.can_device_access_peer, pairs))
    )


class PeerSum:
    """Memory that the ranks of ``torch.distributed``'s group share for sums; each makes one, at the same time.

    Raises:
        RuntimeError: of torch, where the GPUs cannot reach each other's memory.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.buffer = symmetric.empty(2 * self.world * CAPACITY, dtype=dtype, device=device)
        self.flags = symmetric.empty(CAPACITY // BLOCK * self.world, dtype=torch.int32, device=device).zero_()
        group = cast(dist.ProcessGroup, dist.group.WORLD)
        handles = [symmetric.rendezvous(tensor, group) for tensor in (self.buffer, self.flags)]
        self.places = [tuple(handle.buffer_ptrs) for handle in handles]
        self.calls = torch.zeros(CAPACITY // BLOCK, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        dist.barrier()

    def __call__(self, part: Tensor) -> Tensor:
        """Sum at most ``CAPACITY`` elements, contiguous, in place; every rank calls with the same shape."""
        peer_sum_kernel[(triton.cdiv(part.numel(), BLOCK),)](
            part, *self.places, self.calls, part.numel(), RANK=self.rank, WORLD=self.world, CAPACITY=CAPACITY,
            BLOCK=BLOCK, **overlap_settings(True, part.device),
        )  # fmt: skip
        return part
