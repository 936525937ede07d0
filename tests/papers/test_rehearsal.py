"""The papers' runs with tiny random checkpoints: all have a small form (`make rehearse` runs them)."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from longdecode.evals.run_config import build_run_config, load_run_config
from longdecode.evals.sweep import SIZES


def test_every_run_has_a_small_form_and_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    rehearsal, checkpoints = (importlib.import_module(name) for name in ("rehearsal", "checkpoints"))
    assert len(rehearsal.runs()) == 7
    for name in rehearsal.runs():
        run = build_run_config(rehearsal.scaled(name), name)
        known = set(checkpoints.ARCHITECTURES) & set(SIZES["checkpoints"])
        assert {model.path for model in run.models.values()} <= known
        whole = build_run_config(rehearsal.scaled(name, cells=True), name)
        both = [whole, load_run_config(rehearsal.PAPERS / f"{name}.yaml")]
        kept, own = ((each.budgets, {key: suite.tasks for key, suite in each.suites.items()}) for each in both)
        assert kept == own and run.device == "cpu" and max(max(suite.contexts) for suite in run.suites.values()) <= 4096
