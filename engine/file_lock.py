"""An exclusive lock on a file, which says who holds it and ends with its holder, however that dies."""

from __future__ import annotations

import datetime
import fcntl
import getpass
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from longdecode.engine.errors import LockError

_HOLDER_BYTES = 500


class LockHeldError(LockError):
    """Another process holds the lock; ``holder`` says which, where and since when."""

    def __init__(self, path: Path, holder: str):
        super().__init__(f"{path} is held by {holder}")
        self.holder = holder


class FileLock:
    """An exclusive ``flock`` on a file; a context manager.

    The kernel drops it when the holder dies, so that nothing is left to clear. The file stays behind, because removing
    it would let two processes hold two locks. A child process does not inherit it.

    Args:
        path: the lock file; its folder exists.
        shared: other users of the machine may hold it too (mode 0666).
    """

    def __init__(self, path: Path, *, shared: bool = False):
        self.path = path
        self._mode = 0o666 if shared else 0o644
        self._handle: int | None = None

    def acquire(self, doing: str = "", wait_seconds: float = 0.0) -> None:
        """Take the lock, at once or within some time.

        Args:
            doing: said of the holder in the message that others get.
            wait_seconds: how long to try.

        Raises:
            LockHeldError: another process holds it.
            LockError: the file cannot be opened, or its file system has no locks.
        """
        try:
            handle = self._open()
        except OSError as error:
            raise LockError(f"the lock file {self.path} cannot be opened: {error.strerror}") from error
        try:
            _flock(handle, time.monotonic() + wait_seconds)
        except BlockingIOError:
            holder = os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace").strip()
            os.close(handle)
            raise LockHeldError(self.path, holder or "an unnamed process") from None
        except OSError as error:
            os.close(handle)
            raise LockError(
                f"{self.path} cannot be locked: {error.strerror}; a file system with flock is needed there"
            ) from error
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{holder_text()}{f': {doing}' if doing else ''}\n".encode()[:_HOLDER_BYTES], 0)
        except OSError:
            pass  # a full disk: the lock holds without a name
        self._handle = handle

    def release(self) -> None:
        """Give the lock back; does nothing where it is not held."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _open(self) -> int:
        """Open the file without following a link; O_CREAT is left out where it exists, as a sticky folder may want."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            try:
                return os.open(self.path, flags)
            except FileNotFoundError:
                pass
            try:
                handle = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, self._mode)
            except FileExistsError:
                continue
            os.fchmod(handle, self._mode)  # whatever the umask is
            return handle


def _flock(handle: int, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.02)


def holder_text() -> str:
    """Name this process: id, user, host and the time."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return f"process {os.getpid()} of {user} on {socket.gethostname()} since {now}"
