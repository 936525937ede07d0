"""One job at a time on a GPU, or as many as are allowed: file locks per device, for all users of a host, released
however the job dies."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from longdecode.engine.disk import FileLock, LockHeldError
from longdecode.engine.errors import ConfigError, LockError

LOCK_FOLDER_VARIABLE = "LONGDECODE_LOCK_DIR"
LOCK_FOLDER = Path(os.sep, "tmp", "longdecode-gpu")
"""On every host, for every user: a lock in a user's own folder would bind that user alone."""
JOBS_VARIABLE = "LONGDECODE_GPU_JOBS"
"""Names the number of jobs that may hold one GPU at once; those that time hold it alone whatever it says."""
_SETTLING_SECONDS = 2.0
_FOLDER_MODE = 0o1777  # as /tmp: anyone may add a lock, nobody removes another's


def lock_folder() -> Path:
    """Return the folder of the locks: ``LONGDECODE_LOCK_DIR``, else ``LOCK_FOLDER`` (TMPDIR differs between users)."""
    return Path(os.environ.get(LOCK_FOLDER_VARIABLE) or LOCK_FOLDER)


def jobs_per_gpu() -> int:
    """Return how many jobs may share a GPU: ``LONGDECODE_GPU_JOBS``, else one.

    Raises:
        ConfigError: the variable holds no whole number from 1.
    """
    given = os.environ.get(JOBS_VARIABLE) or "1"
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise ConfigError(f"{JOBS_VARIABLE} is {given!r}; a whole number from 1 is needed")
    return int(given)


def gpu_uuids() -> list[str]:
    """The visible GPUs' own ids, in torch's order; the same whatever ``CUDA_VISIBLE_DEVICES`` calls them."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


@contextmanager
def lease_gpu(
    device: torch.device, *, alone: bool = False, uuids: Sequence[str] | None = None, poll_seconds: float = 0.2
) -> Iterator[torch.device]:
    """Hold a GPU, or a place on it, while the block runs, and make it the current device; on a CPU do nothing.

    A GPU has ``jobs_per_gpu`` places. ``cuda`` without an index takes the first visible GPU that is free, then further
    places of those that are not; with an index that one. Waits, and says once on standard error for whom, while other
    processes hold them all. A lease ends with its process, even a killed one.

    Args:
        alone: hold every place of the GPU, as whatever takes times must.
        uuids: ids of the GPUs to choose from, by index; by default those that torch sees.

    Yields:
        The device to use, with its index.

    Raises:
        LockError: the folder of locks is not open to all users, or has no locks.
        ConfigError: as for ``jobs_per_gpu``.
    """
    if device.type != "cuda":
        yield device
        return
    names = gpu_uuids() if uuids is None else list(uuids)
    indices = range(len(names)) if device.index is None else [device.index]
    folder = lock_folder()
    _open_to_all(folder)
    places = range(jobs_per_gpu())
    wanted = [places] if alone else [range(place, place + 1) for place in places]
    said = False
    while True:
        holders = []
        for taken in wanted:
            for index in indices:
                with ExitStack() as held:
                    try:
                        for place in taken:
                            file = f"gpu-{names[index]}{f'.{place}' if place else ''}.lock"
                            held.enter_context(FileLock(folder / file, shared=True))
                    except LockHeldError as error:
                        holders.append(f"cuda:{index} by {error.holder}")
                        continue
                    device = torch.device("cuda", index)
                    held.enter_context(_current(device))
                    yield device
                    return
        if not said:
            print(f"waiting for a free GPU: {'; '.join(holders)} (locks in {folder})", file=sys.stderr, flush=True)
            said = True
        time.sleep(poll_seconds)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: Triton launches on it, and graphs are replayed on its stream."""
    return torch.cuda.device(device) if torch.cuda.is_available() else nullcontext()


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
