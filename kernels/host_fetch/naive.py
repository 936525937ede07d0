"""Copies of listed blocks in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.block_residency.naive import Arrivals, BlockQueue
from longdecode.kernels.layout import on_host


def copy_blocks(
    source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], queue: BlockQueue, arrivals: Arrivals | None = None
) -> None:
    """Copy ``target[targets[i]] = source[sources[i]]`` for ``i < count``, keys and values alike.

    Moves ``2 * count`` blocks once over the bus between host and device, where one of the pairs is in host memory.

    Args:
        source: keys and values ``[N, E]``, contiguous: ``N`` blocks of ``E`` elements.
        target: keys and values ``[M, E]``, likewise, changed in place; no block is named twice.
        queue: which blocks.
        arrivals: where to note that they are there.

    Raises:
        ValueError: blocks of different sizes or dtypes.
    """
    check_blocks(source, target)
    if arrivals is not None:
        arrivals.state.mul_(2)
    size = queue.sources.shape[0] - 1
    sources, targets = queue.sources[:size], queue.targets[:size]
    if on_host(queue.count):
        sources, targets = sources[: int(queue.count)], targets[: int(queue.count)]
        for have, put in zip(source, target, strict=True):
            put.index_copy_(0, targets, have.index_select(0, sources))
        return
    # What is not queued repeats the first entry; where none is, that entry's target gets what it holds.
    listed = torch.arange(size, device=sources.device) < queue.count
    some = listed[:1]
    sources = torch.where(some, torch.where(listed, sources, sources[:1]), 0)
    targets = torch.where(some, torch.where(listed, targets, targets[:1]), 0)
    for have, put in zip(source, target, strict=True):
        have, there = seen_from(have, sources.device), seen_from(put, sources.device)
        blocks = torch.where(some, have.index_select(0, sources), there.index_select(0, targets))
        there.index_copy_(0, targets, blocks)


def check_blocks(source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> None:
    """Refuse pairs of tensors between which no block can be copied as it is.

    Raises:
        ValueError: as said.
    """
    kinds = {(tensor.shape[1:], tensor.dtype) for tensor in (*source, *target)}
    if len(kinds) > 1 or source[0].dim() != 2:
        raise ValueError(f"blocks of one size and dtype [N, E] are needed, got {sorted(map(str, kinds))}")


def seen_from(x: Tensor, device: torch.device) -> Tensor:
    """Return ``x``, or where it is pinned memory and ``device`` a CUDA device, the same memory as a CUDA tensor."""
    if x.device.type != "cpu" or device.type != "cuda":
        return x
    alias = torch.as_tensor(_Unified(x), device=device)
    return alias.view(x.dtype).view(x.shape)


class _Unified:
    """Pinned memory by its unified address, in the form that torch takes device memory over in."""

    def __init__(self, x: Tensor):
        self.keep = x
        self.__cuda_array_interface__ = {
            "shape": (x.numel() * x.element_size(),),
            "typestr": "|u1",
            "data": (x.data_ptr(), False),
            "version": 3,
        }
