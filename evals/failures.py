"""Errors that end a cell: the status each stands for, and the memory that its traceback holds."""

from __future__ import annotations

import gc

import torch

from longdecode.engine.errors import (
    CheckpointError,
    DataUnavailableError,
    DeviceMemoryError,
    GateError,
    UnsupportedCellError,
)
from longdecode.evals.records import Status

_CPU_ALLOCATOR = "DefaultCPUAllocator"


def status_of(error: Exception) -> Status | None:
    """Return the status an error gives its cell, or ``None`` for an error that is no cell's own."""
    if isinstance(error, DeviceMemoryError | torch.cuda.OutOfMemoryError | MemoryError):
        return "oom"
    if isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error):
        return "oom"
    if isinstance(error, UnsupportedCellError):
        return "unsupported"
    if isinstance(error, GateError | CheckpointError):  # a damaged checkpoint ends its own cells, not the run
        return "failed_gate"
    return "data_unavailable" if isinstance(error, DataUnavailableError) else None


def free_memory(device: torch.device, error: BaseException | None = None) -> None:
    """Give back what nothing refers to any more, an error's frames included; call it outside the ``except`` block."""
    if error is not None:
        error.__traceback__ = error.__cause__ = error.__context__ = None
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
