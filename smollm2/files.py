"""Write folders and files in full or not at all."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longdecode.engine.errors import StorageError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a new folder beside ``target`` that takes its place once the block ends without an error.

    Raises:
        StorageError: the disk is full or may not be written; what was there before is still there.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
            fresh = Path(scratch) / target.name
            fresh.mkdir()
            yield fresh
            if target.exists():
                target.rename(Path(scratch) / "replaced")
            fresh.rename(target)
    except Exception as error:
        if not _is_storage(error):
            raise
        raise StorageError(f"{target} could not be written: {error}; {_free(target)}") from error


def _is_storage(error: BaseException) -> bool:
    """Tell a full or locked disk by its error number, or by the message of a library that hides it."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    return "No space left on device" in str(error)


def _free(target: Path) -> str:
    existing = next((path for path in target.parents if path.is_dir()), None)
    if existing is None:
        return "no part of its path exists"
    return f"{shutil.disk_usage(existing).free / 1e6:.0f} MB are free there"
