"""One job at a time on a GPU: a file lock per device, released by the kernel even when the job is killed."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch

LOCK_FOLDER_VARIABLE = "LONGDECODE_LOCK_DIR"


def lock_folder() -> Path:
    """Return the folder of the locks: ``LONGDECODE_LOCK_DIR``, else ``longdecode`` under the user's cache folder."""
    if override := os.environ.get(LOCK_FOLDER_VARIABLE):
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longdecode"


def gpu_uuids() -> list[str]:
    """The visible GPUs' own ids, in torch's order; the same whatever ``CUDA_VISIBLE_DEVICES`` calls them."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


@contextmanager
def lease_gpu(
    device: torch.device, *, uuids: Sequence[str] | None = None, poll_seconds: float = 0.2
) -> Iterator[torch.device]:
    """Hold a GPU alone while the block runs; on a CPU do nothing.

    ``cuda`` without an index takes the first visible GPU that is free, with an index that one. Waits, and says so once
    on standard error, while other processes hold them all.

    Args:
        uuids: ids of the GPUs to choose from, by index; by default those that torch sees.

    Yields:
        The device to use, with its index.
    """
    if device.type != "cuda":
        yield device
        return
    names = gpu_uuids() if uuids is None else list(uuids)
    indices = range(len(names)) if device.index is None else [device.index]
    folder = lock_folder()
    folder.mkdir(parents=True, exist_ok=True)
    said = False
    while True:
        for index in indices:
            lock = _try_lock(folder / f"gpu-{names[index]}.lock")
            if lock is not None:
                with lock:
                    yield torch.device("cuda", index)
                return
        if not said:
            print(f"waiting for a free GPU ({len(indices)} visible, all leased; locks in {folder})", file=sys.stderr)
            said = True
        time.sleep(poll_seconds)


def _try_lock(file: Path) -> IO[str] | None:
    """The locked file, whose closing releases it, or ``None`` when another process holds it."""
    handle = file.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle
