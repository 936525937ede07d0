"""Who imports whom: arrows between rooms run one way, and few files run between a variant and its number on a page."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from project import count_imports

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kernels", "engine", "methods", "evals", "training", "models", "analysis")
"""Each room imports those before it alone."""
READ_BY_REPORTING = (
    "engine.errors", "methods.card", "methods.registry", "evals.manifest", "evals.store.read_answers",
    "evals.tasks.registry.describe", "evals.tasks.registry.folder_of", "analysis.declaration",
)  # fmt: skip
"""Errors, cards, hashes of files, the answers that pages print, protocols of suites, and what papers published."""
MOST = {"imported": 90, "read": 20}
"""Most files on the way of a variant; ``count_imports`` says what counts."""


@pytest.mark.parametrize("room", [*ROOMS, "reporting"])
def test_arrows_between_rooms_run_one_way(room: str) -> None:
    known = READ_BY_REPORTING if room == "reporting" else ROOMS[: ROOMS.index(room)]
    allowed = tuple(f"longdecode.{name}." for name in (*known, room))
    files = (ROOT / room).rglob("*.py")
    nodes = [(file, n) for file in files for n in ast.walk(ast.parse(file.read_text("utf-8")))]
    imports = [(file, n) for file, n in nodes if isinstance(n, ast.ImportFrom | ast.Import)]
    taken = [(f, f"{getattr(n, 'module', '')}.{a.name}.".removeprefix(".")) for f, n in imports for a in n.names]
    barred = ("longdecode.", "pyarrow.") if room == "reporting" else ("longdecode.",)  # records are read elsewhere
    ours = [(str(f), name) for f, name in taken if name.startswith(barred)]
    assert ours and not [(f, name) for f, name in ours if not name.startswith(allowed)]


@pytest.mark.slow
def test_few_files_run_between_a_variant_and_its_number() -> None:
    files = count_imports.measured()
    assert "methods/quest/method.py" in files["imported"] and "analysis/cells.py" in files["read"]
    assert all(len(files[part]) <= most for part, most in MOST.items()), files
