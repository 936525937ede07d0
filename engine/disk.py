"""Turn a full, locked or failing disk into one line: the path, the bytes needed, the bytes free."""

from __future__ import annotations

import errno
import shutil
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


def _free(path: Path) -> str:
    try:
        existing = next((folder for folder in path.absolute().parents if folder.is_dir()), None)
        return "no part of its path exists" if existing is None else f"{shutil.disk_usage(existing).free:,} are free"
    except OSError as error:
        return f"the free bytes cannot be read ({error.strerror})"
