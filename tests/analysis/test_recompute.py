"""The script that recomputes tables without the project's code: it agrees with committed ones, and finds a change."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("run", ["pilot", "qwen-nosa"])
def test_a_committed_run_is_what_its_records_give(run: str) -> None:
    found = recompute(RESULTS / run)
    assert found.returncode == 0 and found.stdout.startswith(f"{run}: 1"), found.stdout + found.stderr


@pytest.mark.parametrize(
    ("file", "changed"),
    [("summary", {"value": 0.01}), ("summary", {"high": 0.02}), ("comparisons", {"low": -1.0, "high": -1.0}),
     ("comparisons", {"p": 0.2}), ("comparisons", {"n": 1}), ("ranks", {"rank_high": 1}),
     ("measures", {"value": 0.01}), ("measures", {"high": 9.0}), ("pareto", {"loss": 1.0, "front_share": 1})],
)  # fmt: skip
def test_a_changed_number_is_found(tmp_path: Path, file: str, changed: dict[str, float]) -> None:
    shutil.copytree(RESULTS / ("pilot" if file == "pareto" else "retro-0.5b"), tmp_path / "run")
    table = pd.read_csv(path := tmp_path / "run" / f"{file}.csv", dtype_backend="numpy_nullable")
    for name, more in changed.items():
        table[name] = table[name].where(table.index != min(3, len(table) - 1), table[name] + more)
    table.to_csv(path, index=False)
    found = recompute(tmp_path / "run")
    assert found.returncode == 1 and f"{len(table) - 1} of {len(table)} {'cells' * (file == 'summary')}" in found.stdout
    assert all(f"{name} " in found.stdout for name in changed)
