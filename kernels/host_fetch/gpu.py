"""Copies of listed blocks as a Triton kernel that dereferences pinned host memory through unified addresses."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.block_residency.naive import Arrivals, BlockQueue
from longdecode.kernels.host_fetch.naive import check_blocks
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier


@dataclass(frozen=True, slots=True)
class Launch:
    """Persistent programs, elements that each moves at a time of keys and of values, and warps of each.

    The bus needs about 100 KB in flight (50 GB/s at 2 us). On an H200 eight programs reach its rate, four 38 GB/s and
    two 20 GB/s; more leave fewer multiprocessors to the work that the copy is to hide behind.
    """

    programs: int = 8
    chunk: int = 8192
    num_warps: int = 8


BESIDE_ATTENTION = Launch(programs=12, num_warps=32)
"""For a copy that the next kernel overlaps: as many warps leave no room for a program of attention beside them."""


@triton.jit
def announce(p_state, entry):
    """Say that a block has arrived; none where ``entry`` is below 0."""
    if entry >= 0:
        # The barrier puts every thread's stores before the one thread's release.
        tl.debug_barrier()
        tl.atomic_xchg(p_state + entry, 2, sem="release", scope="gpu")


@triton.jit
def copy_blocks_kernel(
    p_from_k, p_from_v, p_to_k, p_to_v, p_sources, p_targets, p_count, p_state, p_entries, room,
    ELEMENTS: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy blocks: ``to[targets[i]] = from[sources[i]]`` for ``i < count``, keys and values.

    Grid ``(P,)``: program ``p`` copies entries ``p, p + P, ...``. Tensors ``[N, ELEMENTS]`` contiguous of one dtype, on
    the device or in pinned host memory; queue int64. The next entry is looked up while this one's blocks are on their
    way. With ``p_state`` (int32) a block that is there sets ``state[entries[i]]`` to 2, and the next kernel may start
    once all programs of this one run, so that it can wait for them and keeps none from a multiprocessor. Moves
    ``2 * count * ELEMENTS`` elements in and as many out.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    count = tl.load(p_count)
    i_entry = tl.program_id(0).to(tl.int64)
    o_chunk = tl.arange(0, CHUNK)
    # Beside the count, not after it: what lies past it is not used.
    source = tl.load(p_sources + i_entry, mask=i_entry < room, other=0)
    target = tl.load(p_targets + i_entry, mask=i_entry < room, other=0)
    if p_state is not None:
        entry = tl.load(p_entries + i_entry, mask=i_entry < room, other=0)
        stored = entry * 0 - 1
    while i_entry < count:
        i_entry += tl.num_programs(0)
        p_source, p_target = source * ELEMENTS, target * ELEMENTS
        for i_chunk in tl.static_range((ELEMENTS + CHUNK - 1) // CHUNK):
            o_element = i_chunk * CHUNK + o_chunk
            inside = o_element < ELEMENTS
            b_k = tl.load(p_from_k + p_source + o_element, mask=inside)
            b_v = tl.load(p_from_v + p_source + o_element, mask=inside)
            if i_chunk == 0:
                source = tl.load(p_sources + i_entry, mask=i_entry < count, other=0)
                target = tl.load(p_targets + i_entry, mask=i_entry < count, other=0)
                if p_state is not None:
                    # While this block is on its way the one before is announced: a release waits for its stores.
                    announce(p_state, stored)
            tl.store(p_to_k + p_target + o_element, b_k, mask=inside)
            tl.store(p_to_v + p_target + o_element, b_v, mask=inside)
        if p_state is not None:
            stored = entry
            entry = tl.load(p_entries + i_entry, mask=i_entry < count, other=0)
    if p_state is not None:
        announce(p_state, stored)


def copy_blocks_gpu(
    source: tuple[Tensor, Tensor],
    target: tuple[Tensor, Tensor],
    queue: BlockQueue,
    arrivals: Arrivals | None = None,
    launch: Launch | None = None,
) -> None:
    """Copy blocks as in ``naive.copy_blocks``, without the host; a CUDA graph can capture it.

    Args:
        source: keys and values ``[N, E]``, contiguous, on the device or in pinned host memory.
        target: likewise.
        queue: on the device.
        arrivals: on the device; the next kernel may start meanwhile, where launches overlap.
        launch: how; ``Launch()``, or ``BESIDE_ATTENTION`` with arrivals, when left out.

    Raises:
        ValueError: blocks of different sizes or dtypes, or tensors that are not contiguous.
    """
    check_blocks(source, target)
    if not all(tensor.is_contiguous() for tensor in (*source, *target)):
        raise ValueError("blocks are copied between contiguous tensors only")
    launch = launch or (Launch() if arrivals is None else BESIDE_ATTENTION)
    elements = source[0].shape[1]
    with torch.cuda.device_of(queue.count):
        copy_blocks_kernel[(launch.programs,)](
            *source, *target, queue.sources, queue.targets, queue.count,
            *((None, None) if arrivals is None else (arrivals.state, arrivals.entries)),
            queue.sources.shape[0],
            ELEMENTS=elements, CHUNK=min(launch.chunk, triton.next_power_of_2(elements)), num_warps=launch.num_warps,
            **overlap_settings(arrivals is not None, queue.count.device),
        )  # fmt: skip
