"""A minute of the fault campaign; each planted fault can still be planted: its text occurs once, its test exists."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from faults import campaign, plant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fault", plant.load_faults([]), ids=lambda fault: f"{fault.file}: {fault.why}")
def test_the_fault_can_be_planted(fault: Any) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.find) == 1
    assert fault.replace != fault.find and fault.why
    file, *names = fault.test.split("::")
    assert all(f" {name.split('[')[0]}" in (ROOT / file).read_text(encoding="utf-8") for name in names)


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind but kills of a whole workflow, which ``test_resume.py`` has."""
    monkeypatch.setitem(campaign.CONFIG["suites"]["mini_recall"], "samples", 6)
    with contextlib.chdir(Path.cwd()):  # which the campaign leaves
        rows = list(campaign.run(campaign.Campaign(tmp_path, seed=0), size=0.01, tree_kills=0, tree_seconds=0))
    assert len(rows) == 5 and not [(row, row.notes) for row in rows if not row.is_good]
