"""An object whose pickle makes a folder, for readers that must not run what they read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Harm:
    """Its pickle makes a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)
