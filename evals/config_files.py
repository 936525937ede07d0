"""Refuse configuration files and caches that Snakemake cannot use, before it shows a traceback, and type its values."""

from __future__ import annotations

import argparse
import difflib
import os
import tempfile
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from longdecode.engine.errors import ConfigError
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.yaml_file import read_yaml

SUFFIXES = (".yaml", ".yml", ".json")


def require_cache() -> None:
    """Make sure that Snakemake can write its cache, which lies in the user's home unless ``XDG_CACHE_HOME`` says where.

    Raises:
        SystemExit: it cannot; one line, which names the variable.
    """
    from platformdirs import user_cache_path  # comes with Snakemake

    folder = user_cache_path("snakemake", "snakemake")
    reason = "there is no home folder"
    try:
        if folder.is_absolute():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return
    except OSError as error:
        reason = error.strerror or type(error).__name__
    raise SystemExit(
        f"StorageError: {folder}: Snakemake's cache cannot be written: {reason}; set XDG_CACHE_HOME to one that can be"
    )


def require_readable(arguments: Sequence[str], root: Path = REPOSITORY) -> None:
    """Read the files that ``--configfile`` names on a Snakemake command line.

    Args:
        arguments: the command line without the command.
        root: the project's folder.

    Raises:
        SystemExit: a file is missing or no YAML; one line, which names the nearest configuration that exists.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="+", type=Path, default=[])
    known, _ = parser.parse_known_args(list(takewhile("--".__ne__, arguments)))
    for path in known.configfile:
        try:
            read_yaml(path)
        except ConfigError as error:
            missing = isinstance(error.__context__, FileNotFoundError)
            raise SystemExit(f"ConfigError: {error}{_advice(path, root) if missing else ''}") from None


def _advice(path: Path, root: Path) -> str:
    near = _nearest(path, root)
    nearest = f"; nearest configuration: {os.path.relpath(near)}" if near else ""
    return nearest + ("" if path.suffix in SUFFIXES else " (a target stands before --configfile, or after --)")


def _nearest(path: Path, root: Path) -> Path | None:
    """Return the configuration named most alike: of the project, of this folder, or of the folder named."""
    folders = (Path(), path.parent)
    known = [*(root / "config").rglob("*.yaml"), *(file for folder in folders for file in folder.glob("*.yaml"))]

    def likeness(other: Path) -> tuple[float, float]:
        pairs = ((path.stem, other.stem), (str(path), os.path.relpath(other)))
        named, placed = (difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
        return named, placed

    return max(sorted(known), key=likeness, default=None)


def retyped(value: Any) -> Any:
    """Give a value of ``--config`` the types of YAML: Snakemake passes what is inside a list or mapping as text."""
    if isinstance(value, Mapping):
        return {key: retyped(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [retyped(entry) for entry in value]
    return yaml.safe_load(value) if isinstance(value, str) else value
