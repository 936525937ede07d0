"""The script that recomputes tables without the project's code: it agrees with committed ones, and finds a change."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

SCRIPT = Path(__file__).with_name("recompute.py")
RESULTS = Path(__file__).parents[2] / "results"


def recompute(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False)


def test_the_script_imports_nothing_of_the_project() -> None:
    scripts = {path.stem: ast.parse(path.read_text("utf-8")) for path in SCRIPT.parent.glob("recompute*.py")}
    nodes = [n for script in scripts.values() for n in ast.walk(script) if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {n.module if isinstance(n, ast.ImportFrom) else n.names[0].name.partition(".")[0] for n in nodes}
    assert names - sys.stdlib_module_names - {"collections.abc"} - set(scripts) == {"numpy", "pandas", "scipy", "yaml"}


def test_a_committed_run_is_what_its_records_give() -> None:
    found = recompute(RESULTS / "qwen-nosa")
    assert found.returncode == 0 and found.stdout.startswith("qwen-nosa: 1"), found.stdout + found.stderr


@pytest.mark.parametrize(
    ("run", "changes"),
    [("qwen-32k", {"pareto": [{"loss": 1.0, "front_share": 1}]}),
     ("retro-0.5b", {"summary": [{"value": 0.01}, {"high": 0.02}],
                     "comparisons": [{"low": -1.0, "high": -1.0}, {"p": 0.2}, {"n": 1}],
                     "ranks": [{"rank_high": 1}], "measures": [{"value": 0.01}, {"high": 9.0}]})],
)  # fmt: skip
def test_changed_numbers_are_found(tmp_path: Path, run: str, changes: dict[str, list[dict[str, float]]]) -> None:
    """Each in a row of its own, and no other row of the run differs."""
    shutil.copytree(RESULTS / run, tmp_path / run)
    wanted = []
    for file, rows in changes.items():
        table = pd.read_csv(path := tmp_path / run / f"{file}.csv", dtype_backend="numpy_nullable")
        for at, row in enumerate(rows, min(3, len(table) - len(rows))):
            for name, more in row.items():
                table[name] = table[name].where(table.index != at, table[name] + more)
            wanted.append(f"  {file}.csv .*" + ".*".join(rf"\b{name} \S+, ours" for name in row))
        table.to_csv(path, index=False)
    found = recompute(tmp_path / run)
    told = [line for line in found.stdout.splitlines() if ".csv " in line]
    assert found.returncode == 1 and len(told) == len(wanted), found.stdout
    assert all(sum(re.match(row, line) is not None for line in told) == 1 for row in wanted), found.stdout
