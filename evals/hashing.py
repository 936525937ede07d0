"""Hashes of code, files and texts; apart from provenance, so that reading a workflow does not import torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_CODE_SUFFIXES = (".py", ".yaml")


def code_hash(method: str, root: Path = REPOSITORY) -> str:
    """Hash of the Python and YAML files that can change a number of this method.

    That is engine/, kernels/, evals/ without its throughput tests, the shared modules of methods/ and the method's own
    folder, there or in a folder that ``LONGDECODE_METHOD_PATH`` names: another method's edit does not put this
    method's records in doubt.

    Args:
        method: the name of the method and of its folder.
        root: where the rooms are.
    """
    rooms = [path for room in ("engine", "kernels", "evals") for path in (root / room).rglob("*")]
    files = [path for path in rooms if root / "evals" / "throughput" not in path.parents]
    files += list((root / "methods").glob("*")) + list((root / "methods" / method).rglob("*"))
    hashes = [hash_files(filter(_is_code, files), root)]
    for entry in filter(None, os.environ.get("LONGDECODE_METHOD_PATH", "").split(os.pathsep)):
        if (folder := Path(entry) / method).is_dir():
            hashes.append(hash_files(filter(_is_code, folder.rglob("*")), folder))
    return hash_texts(hashes)


_AFTER_TIMING = ("summary.py", "derived.py", "compare.py", "cli.py")


def speed_code_hash(root: Path = REPOSITORY) -> str:
    """Hash of the Python and YAML files that can change a time; what only reads speed records is left out.

    Args:
        root: where the rooms are.
    """
    folders = ("engine", "kernels", "methods", "evals/throughput")
    files = (path for folder in folders for path in (root / folder).rglob("*"))
    after = {root / "evals" / "throughput" / name for name in _AFTER_TIMING}
    return hash_files((path for path in files if _is_code(path) and path not in after), root)


def file_hashes(files: Iterable[Path]) -> list[str]:
    """SHA-256 of each file's content under its own name; of one that is missing, of nothing."""
    return [hash_files([path], path.parent) for path in files]


def hash_files(files: Iterable[Path], root: Path) -> str:
    """SHA-256 over names (relative to ``root``) and contents, in name order; times and owners play no part."""
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.is_file()):
        with path.open("rb") as handle:
            content = hashlib.file_digest(handle, "sha256").hexdigest()
        digest.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def _is_code(path: Path) -> bool:
    return path.suffix in _CODE_SUFFIXES


def hash_texts(texts: Iterable[str]) -> str:
    """SHA-256 over texts in order, each set off by its length."""
    digest = hashlib.sha256()
    for text in texts:
        raw = text.encode()
        digest.update(f"{len(raw)}\0".encode() + raw)
    return digest.hexdigest()
