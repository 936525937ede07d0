"""Hold each room to its budget of code lines: no blank lines, comments and docstrings."""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
TRAINED = ("models", "training")
BUDGETS: dict[tuple[str, ...], int] = {
    ("engine",): 3_400,
    ("kernels",): 7_600,
    ("methods",): 6_600,
    # Together, since the tables that the analysis writes are all that pages read.
    ("analysis", "reporting"): 3_600,
    ("workflow", "src", ".ci", "profiles"): 1_400,
    TRAINED: 3_600,
    ("tests",): 21_000,
    ("evals",): 7_500,
}


def code_lines(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else ():
            text = part.value.value if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) else None
            if isinstance(text, str):
                lines.difference_update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return len(lines)


@pytest.mark.parametrize("rooms", BUDGETS, ids=lambda rooms: rooms[0])
def test_a_room_keeps_its_budget(rooms: tuple[str, ...]) -> None:
    try:
        listed = subprocess.check_output(["git", "ls-files", "-z", *rooms], cwd=ROOT, text=True).split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout: what belongs to the project is not known")
    files = [ROOT / name for name in listed if name.endswith(".py") and not (ROOT / name).is_symlink()]
    count = sum(code_lines(file.read_text(encoding="utf-8")) for file in files if file.is_file())
    assert 0 < count <= BUDGETS[rooms], f"{rooms}: {count:,} code lines"
