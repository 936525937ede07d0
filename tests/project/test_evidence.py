"""The committed evidence is as its jobs wrote it; `make manifest PROFILE=h200` enters what was put together by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from longdecode.evals.manifest import NAME, problems

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("profile", ["h200", "real", "retro", "tokenswift"])
def test_committed_evidence_matches_its_manifest(profile: str) -> None:
    assert (ROOT / "results" / profile / NAME).is_file()
    assert problems(ROOT / "results" / profile) == []
