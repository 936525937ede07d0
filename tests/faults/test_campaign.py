"""A minute of the fault campaign: every kind but kills of a whole workflow, which ``test_resume.py`` has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults import campaign


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(campaign.CONFIG["suites"]["mini_recall"], "samples", 6)
    here = Path.cwd()
    try:
        rows = list(campaign.run(campaign.Campaign(tmp_path, seed=0), size=0.01, tree_kills=0, tree_seconds=0))
    finally:
        os.chdir(here)
    assert len(rows) == 5 and not [(row, row.notes) for row in rows if not row.is_good]
