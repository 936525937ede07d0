"""Write in full or not at all, and turn a full, locked or failing disk into one line: path, bytes needed and free."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longdecode.engine.errors import StorageError

_REFUSALS = frozenset(
    (
        errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EMFILE,
        errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
    )
)  # fmt: skip
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
