"""The committed evidence is as its jobs wrote it; `make manifest PROFILE=h200` enters what was put together by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from longdecode.evals.manifest import NAME, problems

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("profile", sorted(path.parent.name for path in ROOT.glob(f"results/*/{NAME}")))
def test_committed_evidence_matches_its_manifest(profile: str) -> None:
    assert problems(ROOT / "results" / profile) == []
