"""One job at a time on a GPU: a file lock per device, for all users of a host, released however the job dies."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from longdecode.engine.errors import LockError
from longdecode.engine.file_lock import FileLock, LockHeldError

LOCK_FOLDER_VARIABLE = "LONGDECODE_LOCK_DIR"
LOCK_FOLDER = Path(os.sep, "tmp", "longdecode-gpu")
"""On every host, for every user: a lock in a user's own folder would bind that user alone."""
_SETTLING_SECONDS = 2.0
_FOLDER_MODE = 0o1777  # as /tmp: anyone may add a lock, nobody removes another's


def lock_folder() -> Path:
    """Return the folder of the locks: ``LONGDECODE_LOCK_DIR``, else ``LOCK_FOLDER`` (TMPDIR differs between users)."""
    return Path(os.environ.get(LOCK_FOLDER_VARIABLE) or LOCK_FOLDER)


def gpu_uuids() -> list[str]:
    """The visible GPUs' own ids, in torch's order; the same whatever ``CUDA_VISIBLE_DEVICES`` calls them."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


@contextmanager
def lease_gpu(
    device: torch.device, *, uuids: Sequence[str] | None = None, poll_seconds: float = 0.2
) -> Iterator[torch.device]:
    """Hold a GPU alone while the block runs; on a CPU do nothing.

    ``cuda`` without an index takes the first visible GPU that is free, with an index that one. Waits, and says once on
    standard error for whom, while other processes hold them all. A lease ends with its process, even a killed one.

    Args:
        uuids: ids of the GPUs to choose from, by index; by default those that torch sees.

    Yields:
        The device to use, with its index.

    Raises:
        LockError: the folder of locks is not open to all users, or has no locks.
    """
    if device.type != "cuda":
        yield device
        return
    names = gpu_uuids() if uuids is None else list(uuids)
    indices = range(len(names)) if device.index is None else [device.index]
    folder = lock_folder()
    _open_to_all(folder)
    said = False
    while True:
        holders = []
        for index in indices:
            lock = FileLock(folder / f"gpu-{names[index]}.lock", shared=True)
            try:
                lock.acquire()
            except LockHeldError as error:
                holders.append(f"cuda:{index} by {error.holder}")
                continue
            try:
                yield torch.device("cuda", index)
            finally:
                lock.release()
            return
        if not said:
            print(f"waiting for a free GPU: {'; '.join(holders)} (locks in {folder})", file=sys.stderr, flush=True)
            said = True
        time.sleep(poll_seconds)


def _open_to_all(folder: Path) -> None:
    """Make the folder of locks, or see that the one there serves all users and is nobody's link."""
    try:
        folder.mkdir(parents=True)
        folder.chmod(_FOLDER_MODE)  # whatever the umask is
    except FileExistsError:
        pass
    except OSError as error:
        raise LockError(
            f"the folder of GPU locks {folder} cannot be made: {error.strerror}; {LOCK_FOLDER_VARIABLE} names another"
        ) from error
    deadline = time.monotonic() + _SETTLING_SECONDS
    while True:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise LockError(f"{folder} is no folder, and the locks of this host's GPUs belong there; remove it")
        shared = found.st_mode & 0o777 == 0o777
        if shared or found.st_uid == os.getuid() or time.monotonic() > deadline:
            break
        time.sleep(0.02)  # its owner may have just made it
    if not shared and found.st_uid == os.getuid():
        folder.chmod(_FOLDER_MODE)
    elif not shared:
        raise LockError(
            f"{folder} is not open to all users of this host (mode {stat.filemode(found.st_mode)}), so leases there "
            f"would bind one of them alone; its owner mends it with `chmod 1777 {folder}`"
        )
