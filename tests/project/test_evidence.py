"""The committed evidence is as its jobs wrote it; after a rebuild, `make manifest PROFILE=h200` enters what is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from longdecode.evals.manifest import problems

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("room", ["results", "reports"])
def test_committed_evidence_matches_its_manifest(room: str) -> None:
    assert problems(ROOT / room / "h200") == []
