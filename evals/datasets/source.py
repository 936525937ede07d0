"""Locate a data set: a local folder, or a repository of the hub with a revision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True, slots=True)
class HubId:
    """A data set of the hub, ``org/name``, at a revision if one was written after an ``@``."""

    repo: str
    revision: str | None


def read_source(value: Path) -> Path | HubId | None:
    """Read a configuration's ``data`` key: a folder that is here, else a hub id, else ``None`` for neither."""
    folder = value.expanduser()
    if folder.is_dir():
        return folder
    found = _HUB_ID.fullmatch(value.as_posix())
    return HubId(found["repo"], found["revision"]) if found else None
