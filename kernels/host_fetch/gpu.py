"""Copies of listed blocks as a Triton kernel that dereferences pinned host memory through unified addresses."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.block_residency.naive import BlockQueue
from longdecode.kernels.host_fetch.naive import check_blocks


@dataclass(frozen=True, slots=True)
class Launch:
    """Persistent programs, elements that each moves at a time of keys and of values, and warps of each.

    The bus needs about 100 KB in flight (50 GB/s at 2 us). On an H200 eight programs reach its rate, four 38 GB/s and
    two 20 GB/s; more leave fewer multiprocessors to the work that the copy is to hide behind.
    """

    programs: int = 8
    chunk: int = 8192
    num_warps: int = 8


@triton.jit
def copy_blocks_kernel(
    p_from_k, p_from_v, p_to_k, p_to_v, p_sources, p_targets, p_count,
    ELEMENTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Copy blocks: ``to[targets[i]] = from[sources[i]]`` for ``i < count``, keys and values.

    Grid ``(P,)``: program ``p`` copies entries ``p, p + P, ...``. Tensors ``[N, ELEMENTS]`` contiguous of one dtype, on
    the device or in pinned host memory; queue int64. The next entry is looked up while this one's blocks are on their
    way. Moves ``2 * count * ELEMENTS`` elements in and as many out.
    """
    count = tl.load(p_count)
    i_entry = tl.program_id(0).to(tl.int64)
    o_chunk = tl.arange(0, CHUNK)
    source = tl.load(p_sources + i_entry, mask=i_entry < count, other=0)
    target = tl.load(p_targets + i_entry, mask=i_entry < count, other=0)
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
            tl.store(p_to_k + p_target + o_element, b_k, mask=inside)
            tl.store(p_to_v + p_target + o_element, b_v, mask=inside)


def copy_blocks_gpu(
    source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], queue: BlockQueue, launch: Launch | None = None
) -> None:
    """Copy blocks as in ``naive.copy_blocks``, without the host; a CUDA graph can capture it.

    Args:
        source: keys and values ``[N, E]``, contiguous, on the device or in pinned host memory.
        target: likewise.
        queue: on the device.
        launch: how; ``Launch()`` when left out.

    Raises:
        ValueError: blocks of different sizes or dtypes, or tensors that are not contiguous.
    """
    check_blocks(source, target)
    if not all(tensor.is_contiguous() for tensor in (*source, *target)):
        raise ValueError("blocks are copied between contiguous tensors only")
    launch = launch or Launch()
    elements = source[0].shape[1]
    with torch.cuda.device_of(queue.count):
        copy_blocks_kernel[(launch.programs,)](
            *source, *target, queue.sources, queue.targets, queue.count, ELEMENTS=elements,
            CHUNK=min(launch.chunk, triton.next_power_of_2(elements)), num_warps=launch.num_warps,
        )  # fmt: skip
