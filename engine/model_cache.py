"""Models that the workflow builds into a cache folder and that a configuration names by one word."""

from __future__ import annotations

import os
from pathlib import Path

BUILT_MODELS = ("smollm2", "smollm2-long")


def cache_root() -> Path:
    """Return the folder for built models: ``LONGDECODE_CACHE``, else ``~/.cache/longdecode``."""
    return Path(os.environ.get("LONGDECODE_CACHE") or Path("~/.cache/longdecode")).expanduser().absolute()


def built_model(name: str) -> Path | None:
    """Return where a built model lies, present or not, or ``None`` where ``name`` is no built model."""
    return cache_root() / name if name in BUILT_MODELS else None
