"""Evidence of other code is listed, of every kind; evidence of today's is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from longdecode.evals.hashing import gate_code_hash
from longdecode.reporting.results import GateRecord, ReportError, load_results
from longdecode.reporting.staleness import measured_before, older

REVISION = "fedcba9876543210"


def test_a_gate_of_older_code_is_evidence_of_older_code() -> None:
    gates = [
        GateRecord("quest", "quest", gate_code_hash("quest"), REVISION),
        GateRecord("tidal_cc", "tidal", "other", REVISION),
    ]
    (said,) = measured_before((), (), gates=gates)
    assert "gates of tidal_cc (revision fedcba987654; the code behind them has changed since)" in said
    assert measured_before((), (), gates=gates[:1]) == []


def test_gates_beside_a_run_are_read(run_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    gate = folder / "gate" / "quest.json"
    gate.parent.mkdir()
    gate.write_text(json.dumps({"method": "quest", "code_hash": "other", "revision": REVISION}), encoding="utf-8")
    assert any(
        "gates of quest (revision fedcba987654" in text for text in older(load_results(folder / "config.yaml", folder))
    )
    gate.write_text("{}", encoding="utf-8")
    with pytest.raises(ReportError, match=r"quest\.json: no gate's file"):
        load_results(folder / "config.yaml", folder)
