"""Files of JSON lines, as tests read and write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def write_rows(file: Path, rows: Iterable[Any]) -> Path:
    """Write rows, the file's folder too where there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file
