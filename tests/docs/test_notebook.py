"""The notebook runs as it stands, and shows what its text says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "three-methods.ipynb"


def test_the_notebook_runs_and_orders_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[2] / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    rows = ["full", "quest", "oracle_topk", "streaming"]
    check = f"print(*table_of_methods.set_index('method')['right of 4'].loc[{rows}])"
    notebook.cells.append(nbformat.v4.new_code_cell(check))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    full, quest, oracle, window = map(int, notebook.cells[-1].outputs[0].text.split())
    assert full == oracle == 4 and quest >= 3 and window <= 1
