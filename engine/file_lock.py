"""An exclusive lock on a file, which says who holds it and ends with its holder, however that dies."""

from __future__ import annotations

import datetime
import getpass
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import Timeout, UnixFileLock

from longdecode.engine.errors import LockError

_HOLDER_BYTES = 500


class LockHeldError(LockError):
    """Another process holds the lock; ``holder`` says which, where and since when."""

    def __init__(self, path: Path, holder: str):
        super().__init__(f"{path} is held by {holder}")
        self.holder = holder


class FileLock:
    """A ``filelock.UnixFileLock`` that names its holder; a context manager.

    The kernel drops the lock when the holder dies, so that nothing is left to clear. The file stays behind.

    Args:
        path: the lock file; its folder exists.
        shared: other users of the machine may hold it too (mode 0666).
    """

    def __init__(self, path: Path, *, shared: bool = False):
        self.path = path
        self._doing = ""
        # With a hook filelock never falls back to a lock that outlives its holder.
        self._lock = UnixFileLock(
            path, mode=0o666 if shared else 0o644, thread_local=False, poll_interval=0.02, on_acquired=self._sign
        )

    def acquire(self, doing: str = "", wait_seconds: float = 0.0) -> None:
        """Take the lock, at once or within some time.

        Args:
            doing: said of the holder in the message that others get.
            wait_seconds: how long to try.

        Raises:
            LockHeldError: another process holds it.
            LockError: the file cannot be opened, or its file system has no locks.
        """
        self._doing = doing
        try:
            self._lock.acquire(timeout=wait_seconds)
        except Timeout:
            holder = self.path.read_bytes()[:_HOLDER_BYTES].decode(errors="replace").strip()
            raise LockHeldError(self.path, holder or "an unnamed process") from None
        except OSError as error:
            raise LockError(
                f"{self.path} cannot be locked: {error.strerror}; it must be a file that this user may write, on a "
                "file system with flock"
            ) from error

    def release(self) -> None:
        """Give the lock back; does nothing where it is not held."""
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _sign(self, handle: int) -> None:
        """Write the holder into the file; on a full disk the lock holds without a name."""
        text = f"{_holder()}{f': {self._doing}' if self._doing else ''}\n"
        with suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, text.encode()[:_HOLDER_BYTES], 0)


def _holder() -> str:
    """Name this process: id, user, host and the time."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return f"process {os.getpid()} of {user} on {socket.gethostname()} since {now}"
