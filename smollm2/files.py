"""Write folders and files in full or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longdecode.engine.disk import refusal, writing
from longdecode.engine.errors import StorageError


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
        if isinstance(error, StorageError) or "No space left on device" not in str(error):
            raise
        raise StorageError(refusal(target, OSError())) from error  # a library's own error hides the disk's
