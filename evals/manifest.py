"""The manifest of a results or report folder: a hash of each file, made by what wrote it and checked before it is used.

A line is ``<sha256> <bytes> <settings> <path>``. Records, tables and pages are entered by the job that made them, never
by a job that found them, so that an edit stays visible. ``settings`` is the hash of the configuration a table was made
under, ``-`` for other files. In a report's folder the path ``<results>`` stands for the results' own manifest.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from longdecode.engine.errors import LongDecodeError
from longdecode.engine.file_lock import FileLock
from longdecode.evals.storage import replacing

NAME = "manifest.txt"
RESULTS = "<results>"
_LOCK_SECONDS = 120.0
SUFFIXES = frozenset((".parquet", ".csv", ".json", ".yaml", ".html", ".svg", ".css"))
_NOT_EVIDENCE = frozenset(("journal", "logs", "benchmarks"))


class ManifestError(LongDecodeError):
    """A file is not the one that the manifest was told of."""


class Entry(NamedTuple):
    """One line of a manifest, its path aside."""

    sha256: str
    size_bytes: int
    settings: str = "-"


def results_root(output: Path) -> Path:
    """Return the folder of a run's results, given the parquet file of a job; beside it where it lies elsewhere."""
    room = next((parent for parent in output.parents if parent.name in ("records", "speed")), None)
    return room.parent if room else output.parent


def seal(root: Path, files: Iterable[Path], config: Path | None = None) -> None:
    """Enter files just written, in place of what the manifest said of other content of them.

    Args:
        root: the folder whose manifest it is.
        files: below ``root``.
        config: the configuration that tables were made under.

    Raises:
        LockError: the manifest cannot be locked.
        StorageError: the disk refuses it.
    """
    settings = sha256(config) if config else "-"
    fresh = {path.relative_to(root).as_posix(): _entry(path, settings) for path in files}
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / f".{NAME}.lock")
    lock.acquire("entering files in the manifest", _LOCK_SECONDS)
    try:
        entries = read(root)
        for name, entry in fresh.items():
            if config or name not in entries or entries[name].sha256 != entry.sha256:
                entries[name] = entry
        _write(root, entries)
    finally:
        lock.release()


def read(root: Path) -> dict[str, Entry]:
    """Return a folder's entries by path; none where it has no manifest.

    Raises:
        ManifestError: a line is not an entry.
    """
    path = root / NAME
    entries = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines() if path.is_file() else (), 1):
        parts = line.split(" ", 3)
        if len(parts) != 4 or len(parts[0]) != 64 or not parts[1].isdigit():
            raise ManifestError(f"{path}:{number}: not a line of a manifest: {line[:60]!r}")
        entries[parts[3]] = Entry(parts[0], int(parts[1]), parts[2])
    return entries


def listed(root: Path) -> set[Path]:
    """Return the files that a folder's manifest names."""
    return {root / name for name in read(root) if name != RESULTS}


def problems(root: Path, files: Iterable[Path] | None = None, config: Path | None = None) -> list[str]:
    """Say what is wrong with a folder, a line a file; nothing where all is as it was written.

    Args:
        files: those to look at; left out, all that the manifest names and all evidence that it does not.
        config: the configuration that the tables among them must have been made under.
    """
    entries = read(root)
    if not entries:
        return [f"{root / NAME}: no manifest; `make manifest` writes one of what is there"]
    wanted = sorted(
        {*(root / name for name in entries if name != RESULTS), *evidence(root)} if files is None else files
    )
    found = [problem for path in wanted if (problem := _problem(path, root, entries, config))]
    results = _results_of(root) if files is None and RESULTS in entries else None
    if results is not None and sha256(results) != entries[RESULTS].sha256:
        found.append(f"{root}: the pages were built from other results than {results} lists; build the report again")
    return found


def require(root: Path, files: Iterable[Path] | None = None, config: Path | None = None) -> None:
    """Refuse files that are not as they were written; arguments as of ``problems``.

    Raises:
        ManifestError: the first problem, and how many more there are.
    """
    if found := problems(root, files, config):
        more = f" (and {len(found) - 1} more: make verify)" if len(found) > 1 else ""
        raise ManifestError(found[0] + more)


def rewrite(root: Path) -> int:
    """Write a folder's manifest anew from the evidence in it, and return the number of entries."""
    config = root / "config.yaml"
    settings = sha256(config) if config.is_file() else "-"
    entries = {
        path.relative_to(root).as_posix(): _entry(path, settings if path.parent == root and path != config else "-")
        for path in evidence(root)
    }
    if (results := _results_of(root)) is not None:
        entries[RESULTS] = _entry(results, "-")
    _write(root, entries)
    return len(entries)


def evidence(root: Path) -> list[Path]:
    """Return the files of a folder that a manifest covers: records, tables, pages; no journals and no logs."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.suffix in SUFFIXES
        and not path.name.startswith(".")
        and not _NOT_EVIDENCE & set(path.relative_to(root).parts[:-1])
        and path.is_file()
    )


def sha256(path: Path) -> str:
    """Hash a file's content."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _problem(path: Path, root: Path, entries: Mapping[str, Entry], config: Path | None) -> str | None:
    entry = entries.get(path.relative_to(root).as_posix())
    again = f"remove it (`rm {path}`) and run again"
    if entry is None:
        return f"{path}: not in {root / NAME}, so no job of this run wrote it; {again}"
    if not path.is_file():
        return f"{path}: missing; run again with `--forcerun` of the rule that makes it, or fetch it anew"
    if path.stat().st_size != entry.size_bytes or sha256(path) != entry.sha256:
        return f"{path}: changed since it was written ({root / NAME}); {again}"
    if config is not None and entry.settings not in ("-", _config_hash(config, config.stat().st_mtime_ns)):
        return f"{path}: made under another configuration than {config}; {again}"
    return None


@functools.lru_cache(maxsize=8)
def _config_hash(config: Path, mtime_ns: int) -> str:
    return sha256(config)


def _entry(path: Path, settings: str) -> Entry:
    return Entry(sha256(path), path.stat().st_size, settings)


def _write(root: Path, entries: Mapping[str, Entry]) -> None:
    lines = [f"{e.sha256} {e.size_bytes} {e.settings} {name}\n" for name, e in sorted(entries.items())]
    with replacing(root / NAME, sum(map(len, lines))) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def _results_of(report: Path) -> Path | None:
    """Return the manifest of the results behind a folder of pages: ``reports/x`` has ``results/x``."""
    path = report.absolute().parents[1] / "results" / report.name / NAME
    return path if report.absolute().parent.name == "reports" and path.is_file() else None


def main(arguments: list[str] | None = None) -> None:
    """Check or rewrite the manifests of folders."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("act", choices=("verify", "write"))
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args(arguments)
    bad = 0
    for folder in given.folders:
        if given.act == "write":
            print(f"{folder / NAME}: {rewrite(folder)} files")
            continue
        found = problems(folder)
        bad += len(found)
        print(*found, sep="\n") if found else print(f"{folder}: {len(read(folder))} files are as they were written")
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    main()
