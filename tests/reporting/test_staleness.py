"""Evidence of other code is listed, of every kind; evidence of today's is not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longdecode.evals.hashing import gate_code_hash
from longdecode.reporting import readme
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


def test_the_readme_lists_older_evidence_by_profile(run_folder: Path, tmp_path: Path) -> None:
    """The made-up scores carry a hash that no code has; a run of gates of today's code alone has nothing to list."""
    shutil.copytree(run_folder, tmp_path / "results" / "synthetic")
    found = readme.older(folder=tmp_path / "results").splitlines()
    assert len(found) == 3 and found[2].startswith("| `results/synthetic` | ")
    assert "scores of full, oracle_topk, quest, quest_script, streaming and tidal (0123456)" in found[2]
    fresh = load_results(run_folder / "config.yaml", run_folder)
    today = [GateRecord("quest", "quest", gate_code_hash("quest"), REVISION)]
    nothing = replace(fresh, records=(), speed_records=(), gates=today)
    assert readme.older(nothing, folder=tmp_path / "results").splitlines()[2] == "| `results/synthetic` | none |"
