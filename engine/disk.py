"""Write in full or not at all, lock files, and say of a full or failing disk in one line what it lacks."""

from __future__ import annotations

import datetime
import errno
import getpass
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import Timeout, UnixFileLock

from longdecode.engine.errors import LockError, StorageError

_REFUSALS = frozenset(
    (
        errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EMFILE,
        errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
    )
)  # fmt: skip
_HOLDER_BYTES = 500
_FULL = "No space left on device"


@contextmanager
def writing(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Name the place in the error of a write that the disk refuses.

    Args:
        path: what is written.
        needed_bytes: its size, where it is known before.

    Raises:
        StorageError: the disk is full, read-only or failing, or the path cannot hold a file; other errors pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS and _FULL not in str(error):
            raise
        raise StorageError(refusal(path, error, needed_bytes)) from error


def refusal(path: Path, error: OSError, needed_bytes: int | None = None) -> str:
    """Return the line for a write that the disk refused."""
    reason = error.strerror or _FULL
    needed = "" if needed_bytes is None else f"{needed_bytes:,} bytes are needed, "
    return f"{path} could not be written: {reason}; {needed}{_free(path)}"


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a new folder beside ``target`` that takes its place once the block ends without an error.

    Raises:
        StorageError: the disk is full or may not be written; what was there before is still there.
    """
    try:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
                fresh = Path(scratch) / target.name
                fresh.mkdir()
                yield fresh
                if target.exists():
                    target.rename(Path(scratch) / "replaced")
                fresh.rename(target)
    except Exception as error:
        if isinstance(error, StorageError) or _FULL not in str(error):
            raise
        raise StorageError(refusal(target, OSError())) from error  # a library's own error hides the disk's


def existing_parent(path: Path) -> Path | None:
    """Return the nearest folder above ``path`` that is there."""
    return next((folder for folder in path.absolute().parents if folder.is_dir()), None)


def _free(path: Path) -> str:
    try:
        existing = existing_parent(path)
        return "no part of its path exists" if existing is None else f"{shutil.disk_usage(existing).free:,} are free"
    except OSError as error:
        return f"the free bytes cannot be read ({error.strerror})"


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
