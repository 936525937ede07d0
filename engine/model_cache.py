"""Models that the workflow builds into a cache folder and that a configuration names by one word."""

from __future__ import annotations

import os
import re
from pathlib import Path

BUILT_MODELS = (
    "smollm2", "smollm2-long", "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-yarn", "qwen2.5-coder-1.5b",
    "qwen2.5-coder-1.5b-yarn",
)  # fmt: skip
"""Names of the models that ``models.build`` makes; ``models/sources.py`` says of what."""
MINIATURE_SEED = re.compile(r"miniature-seed([0-9]+)")
"""Names of further miniatures, each trained from a seed of its own."""


def cache_root() -> Path:
    """Return the folder for built models: ``LONGDECODE_CACHE``, else that in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.environ.get("LONGDECODE_CACHE") or caches / "longdecode").expanduser().absolute()


def built_model(name: str) -> Path | None:
    """Return where a built model lies, present or not, or ``None`` where ``name`` is no built model."""
    return cache_root() / name if name in BUILT_MODELS or MINIATURE_SEED.fullmatch(name) else None
