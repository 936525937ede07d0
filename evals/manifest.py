"""The manifest of a results or report folder: a hash of each file, made by what wrote it and checked before it is used.

``manifest.txt`` is what ``sha256sum`` writes and ``sha256sum -c`` checks. Records, tables and pages are entered by the
job that made them, never by a job that found them, so that an edit stays visible. A report's manifest also names that
of the results it was built from.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from longdecode.engine.disk import FileLock
from longdecode.engine.errors import LongDecodeError
from longdecode.evals.store import write_text

NAME = "manifest.txt"
WEIGHTS = ".safetensors"
"""Of forks and draft heads: checked where they are there. Results are passed on without them, and a job that needs them
makes them again."""
SUFFIXES = frozenset((".parquet", ".csv", ".json", ".yaml", ".html", ".svg", ".css", ".js", WEIGHTS))
_LOCK_SECONDS, _NOT_EVIDENCE = 120.0, frozenset(("journal", "logs", "benchmarks"))


class ManifestError(LongDecodeError):
    """A file is not the one that the manifest was told of."""


def seal(root: Path, files: Iterable[Path]) -> None:
    """Enter files just written, in place of what the manifest said of them.

    Raises:
        LockError: the manifest cannot be locked.
        StorageError: the disk refuses it.
    """
    fresh = {os.path.relpath(path, root): sha256(path) for path in files}
    root.mkdir(parents=True, exist_ok=True)
    (lock := FileLock(root / f".{NAME}.lock")).acquire("entering files in the manifest", _LOCK_SECONDS)
    try:
        _write(root, read(root) | fresh)
    finally:
        lock.release()


def read(root: Path) -> dict[str, str]:
    """Return a folder's hashes by path; none where it has no manifest.

    Raises:
        ManifestError: a line is not an entry.
    """
    path, entries = root / NAME, dict[str, str]()
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines() if path.is_file() else (), 1):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise ManifestError(f"{path}:{number}: not a line of a manifest: {line[:60]!r}")
        entries[name] = digest
    return entries


def listed(root: Path) -> set[Path]:
    """Return the files that a folder's manifest names."""
    return {root / name for name in read(root)}


def problems(root: Path, files: Iterable[Path] | None = None) -> list[str]:
    """Say what is wrong with a folder, a line a file; nothing where all is as it was written.

    Args:
        files: those to look at; left out, all that the manifest names and all evidence that it does not.
    """
    if not (entries := read(root)):
        return [f"{root / NAME}: no manifest; `make manifest` writes one of what is there"]
    wanted = listed(root) | set(evidence(root)) if files is None else set(files)
    return [said for path in sorted(wanted) if (said := _problem(path, root, entries))]


def require(root: Path, files: Iterable[Path] | None = None) -> None:
    """Refuse files that are not as they were written; arguments as of ``problems``.

    Raises:
        ManifestError: the first problem, and how many more there are.
    """
    if found := problems(root, files):
        raise ManifestError(found[0] + (f" (and {len(found) - 1} more: make verify)" if len(found) > 1 else ""))


def rewrite(root: Path) -> int:
    """Write a folder's manifest anew from the evidence in it, and return the number of entries."""
    results = (place := root.absolute()).parents[1] / "results" / place.name / NAME
    built_from = [results] if place.parent.name == "reports" and results.is_file() else []
    _write(root, {os.path.relpath(path, place): sha256(path) for path in (*evidence(place), *built_from)})
    return len(read(root))


def evidence(root: Path) -> list[Path]:
    """Return the files of a folder that a manifest covers: records, tables, pages; no journals and no logs."""
    found = (path for path in root.rglob("*") if path.suffix in SUFFIXES and not path.name.startswith("."))
    return sorted(path for path in found if path.is_file() and not _NOT_EVIDENCE & set(path.relative_to(root).parts))


def sha256(path: Path) -> str:
    """Hash a file's content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _problem(path: Path, root: Path, entries: Mapping[str, str]) -> str | None:
    name = os.path.relpath(path, root)
    if name not in entries:
        return f"{path}: not in {root / NAME}, so no job of this run wrote it; remove it (`rm {path}`) and run again"
    if not path.is_file():
        told = f"{path}: missing; run again (with `--forcerun` of the rule that makes it if it stays so), or fetch it"
        return None if path.suffix == WEIGHTS else told
    if sha256(path) == entries[name]:
        return None
    if path.name == NAME:
        return f"{root}: the pages were built from other results than {path} lists; build the report again"
    return f"{path}: changed since it was written ({root / NAME}); remove it (`rm {path}`) and run again"


def _write(root: Path, entries: Mapping[str, str]) -> None:
    write_text(root / NAME, "".join(f"{digest}  {name}\n" for name, digest in sorted(entries.items())))


if __name__ == "__main__":  # ``longdecode verify`` checks them
    for folder in map(Path, sys.argv[1:]):
        print(f"{folder / NAME}: {rewrite(folder)} files")
