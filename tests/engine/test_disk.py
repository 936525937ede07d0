"""Folders that are written in full or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from longdecode.engine.disk import whole_folder
from longdecode.engine.errors import StorageError


def test_a_full_disk_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text("old")
    for error in (OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O: No space left on device")):
        with pytest.raises(StorageError, match=r"model could not be written.*are free"), whole_folder(target) as new:
            (new / "config.json").write_text("half")
            raise error
    with pytest.raises(ValueError, match="other"), whole_folder(target):
        raise ValueError("other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and (target / "config.json").read_text() == "old"
    with whole_folder(target) as new:
        (new / "config.json").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and (target / "config.json").read_text() == "new"
