"""The README's Python runs, and measured numbers of README.md and of the notes beside results stand in tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from longdecode.reporting.readme import TEMPLATE, render

ROOT = Path(__file__).parents[2]
RESULT = re.compile(r"(?<![\w.])[-+−]?(\d+(?:\.\d+)?)(?= ?(?:%|×|times\b|points?\b|nats\b|ms\b|us\b))")
NOTES = sorted((ROOT / "results").glob("*/README.md"))
SAID = {"offload": {"70"}}  # another author's hit rate
"""Numbers that are no result of ours."""


def table_values(folder: Path) -> np.ndarray:
    """Return every number of a profile's tables, shares as per cent too."""
    tables = [pd.read_csv(file, low_memory=False) for file in folder.glob("*.csv")]
    values = np.abs(np.concatenate([table.select_dtypes("number").to_numpy().ravel() for table in tables]))
    return np.concatenate([values, 100 * values, values / 1000])


def test_the_readme_is_what_its_template_and_the_tables_give() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8") == render(ROOT)


def test_the_template_holds_no_result_of_its_own() -> None:
    text = re.sub(r"\{[{%].*?[%}]\}", "", (ROOT / "docs" / TEMPLATE).read_text(encoding="utf-8"), flags=re.DOTALL)
    limits = {"95", "2", "15", "1.6"}  # intervals, the margin, settings of a run
    assert {found[1] for found in RESULT.finditer(text)} <= limits


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.parent.name)
def test_a_number_of_a_note_stands_in_a_table(note: Path) -> None:
    values, missing = table_values(note.parent), []
    for found in RESULT.finditer(note.read_text(encoding="utf-8")):
        number = found[1]
        digits = len(number.partition(".")[2])
        near = np.isclose(np.round(values, digits), float(number), atol=10.0 ** -(digits + 3))
        if not near.any() and number not in SAID.get(note.parent.name, set()):
            missing.append(found[0])
    assert not missing


def test_words_keep_their_bounds() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1_200
    listed = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "config").glob("*.md"), *NOTES]
    texts = [file.read_text(encoding="utf-8") for file in listed if file != ROOT / "README.md"]
    assert sum(len(text.split()) for text in texts) <= 20_000


def test_python_of_the_readme_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
    tokens_read = float(printed.split()[-1])
    assert 240 <= tokens_read < 1800
