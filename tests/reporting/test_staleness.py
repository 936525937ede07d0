"""Evidence of other code is listed, of every kind; evidence of today's is not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from longdecode.evals.fingerprint import gate_code_hash
from longdecode.reporting.results import GateRecord, ReportError, load_results
from longdecode.reporting.staleness import code_line

REVISION = "fedcba9876543210"


def test_a_line_names_revisions_and_what_code_has_changed_since(run_folder: Path) -> None:
    results = load_results(run_folder / "config.yaml", run_folder)
    gates = [
        GateRecord("quest", "quest", gate_code_hash("quest"), REVISION),
        GateRecord("tidal_cc", "tidal", "x", "abc"),
    ]
    alone = replace(results, records=(), speed_records=(), gates=gates[:1])
    assert code_line(alone) == "Code revision fedcba987654; no code behind them has changed since."
    both = replace(results, gates=gates)
    assert code_line(both) == (
        "Code revision 0123456789ab, abc and fedcba987654; code behind scores, times and gates has changed since."
    )
    assert code_line(replace(alone, gates=())) == ""


def test_gates_beside_a_run_are_read(run_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    gate = folder / "gate" / "quest.json"
    gate.parent.mkdir()
    gate.write_text(json.dumps({"method": "quest", "code_hash": "other", "revision": REVISION}), encoding="utf-8")
    assert "fedcba987654" in code_line(load_results(folder / "config.yaml", folder))
    gate.write_text("{}", encoding="utf-8")
    with pytest.raises(ReportError, match=r"quest\.json: no gate's file"):
        load_results(folder / "config.yaml", folder)
