"""Host memory for keys and values: counted before it is touched, pinned where a GPU reads it, and used again."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import ConfigError, HostMemoryError, PinnedMemoryError

RESERVE_BYTES = 1 << 30
"""Host memory that is left to everything else."""
SMALL_BYTES = 1 << 28
"""Sizes whose rounding up to a power of two does not matter."""
HOST_GIB_VARIABLE = "LONGDECODE_HOST_GIB"
"""Names the host memory free to this process, for virtual machines that show memory only once it is touched."""
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Folder, limit, use, and the part of the use that is file cache, of both versions of control groups."""
_idle: list[Tensor] = []
"""Pinned regions that nothing uses; touching 8 GiB takes about 3 s on the machines of the H200 runs."""


def free_host_bytes() -> int:
    """Return bytes that this process may still take: what the kernel estimates, within its control group's limit.

    ``LONGDECODE_HOST_GIB`` stands in for both.

    Raises:
        ConfigError: the variable holds no whole number from 1.
    """
    if given := os.environ.get(HOST_GIB_VARIABLE):
        if not given.isascii() or not given.isdigit() or int(given) < 1:
            raise ConfigError(f"{HOST_GIB_VARIABLE} is {given!r}; a whole number of GiB from 1 is needed")
        return int(given) << 30
    free = [math.inf]
    for line in _MEMINFO.read_text().splitlines() if _MEMINFO.exists() else ():
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    for folder, limit, used, cached in _CGROUPS:
        files = [Path(folder, name) for name in (limit, used, "memory.stat")]
        if all(file.exists() for file in files):
            most, now, stat = (file.read_text().split() for file in files)
            if most[0].isdigit():
                reclaimable = int(stat[stat.index(cached) + 1]) if cached in stat else 0
                free.append(int(most[0]) - int(now[0]) + reclaimable)
    return int(min(free)) if min(free) < math.inf else 1 << 62


class HostBuffer:
    """A flat piece of host memory, uninitialised; its region is used again when the last reference is dropped.

    Args:
        nbytes: size.
        device: who reads it: pinned for CUDA, an ordinary tensor for a CPU, a tensor without values for ``meta``.

    Raises:
        HostMemoryError: it does not fit what is free.
        PinnedMemoryError: the driver refuses to pin it.
    """

    def __init__(self, nbytes: int, device: torch.device):
        self.device = device
        if device.type == "cuda":
            region = _take(nbytes)
            weakref.finalize(self, _idle.append, region)
        else:
            if device.type == "cpu":
                _refuse_if_too_large(nbytes)
            region = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.bytes = region[:nbytes]

    def view(self, dtype: torch.dtype, shape: Sequence[int], start: int = 0) -> Tensor:
        """Return a tensor over the bytes from ``start`` on."""
        stop = start + math.prod(shape) * dtype.itemsize
        return self.bytes[start:stop].view(dtype).view(*shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> HostBuffer:
        """Return a copy in a region of its own."""
        copy = HostBuffer(self.bytes.numel(), self.device)
        copy.bytes.copy_(self.bytes)
        return copy


def release_idle_regions() -> None:
    """Unpin and free every region that nothing uses."""
    _idle.clear()
    # Regions of torch's own allocator would else stay pinned in its cache; the name depends on torch's version.
    for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):
        if torch.cuda.is_available() and hasattr(torch._C, name):
            getattr(torch._C, name)()
            return


def _take(nbytes: int) -> Tensor:
    """Return the smallest idle region that fits, or a new one."""
    for region in sorted(_idle, key=Tensor.numel):
        if region.numel() >= nbytes:
            _idle[:] = [other for other in _idle if other is not region]
            return region
    if _idle:
        release_idle_regions()
    _refuse_if_too_large(nbytes)
    try:
        return _pinned(nbytes)
    except RuntimeError as error:
        raise PinnedMemoryError(f"pinning {nbytes:,} bytes of host memory was refused: {error}") from error


def _pinned(nbytes: int) -> Tensor:
    """Return pinned memory: from torch's allocator, which rounds up to a power of two, where that wastes little."""
    if nbytes <= SMALL_BYTES or nbytes & (nbytes - 1) == 0:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    region = torch.empty(nbytes, dtype=torch.uint8)
    runtime = torch.cuda.cudart()
    if status := int(runtime.cudaHostRegister(region.data_ptr(), nbytes, 1)):
        raise RuntimeError(f"cudaHostRegister returned {status}")
    # At exit the driver does it.
    weakref.finalize(region, runtime.cudaHostUnregister, region.data_ptr()).atexit = False
    return region


def _refuse_if_too_large(nbytes: int) -> None:
    free = free_host_bytes() - RESERVE_BYTES
    if nbytes > free:
        raise HostMemoryError(
            f"keys and values need {nbytes:,} bytes of host memory; {max(0, free):,} are free "
            f"({RESERVE_BYTES:,} more are left to everything else)"
        )
