"""The papers' runs with tiny random checkpoints: all have a small form, one is run to its report (`make rehearse`)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import huggingface_hub
import pytest
import torch
import yaml

from longdecode.evals.gate import Gate, GateFile
from longdecode.evals.run_config import build_run_config

SIZES = Path(__file__).resolve().parents[2] / "config" / "papers" / "sizes.yaml"


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("rehearsal")


def test_every_run_has_a_small_form_and_an_architecture(rehearsal: ModuleType) -> None:
    architectures = importlib.import_module("checkpoints").ARCHITECTURES
    sizes = yaml.safe_load(SIZES.read_text())["checkpoints"]
    assert len(rehearsal.runs()) == 6
    for name in rehearsal.runs():
        run = build_run_config(rehearsal.scaled(name), name)
        assert {model.path for model in run.models.values()} <= set(architectures) & set(sizes)
        assert run.device == "cpu" and max(max(suite.contexts) for suite in run.suites.values()) <= 4096


@pytest.mark.slow
def test_a_run_ends_in_its_report(rehearsal: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoint from the hub's cache, a gated data set's format, one job a suite: every cell has a score.

    The gates are checked here, where all is imported: a job of a gate, ten seconds, is run by the workflow's tests.
    """
    values = rehearsal.scaled("retro-reasoning")
    changes = {
        "jobs": "suite",
        "methods": {label: values["methods"][label] for label in ("full", "retro")},
        "suites": {"gpqa": values["suites"]["gpqa"]},
    }
    place = rehearsal.Rehearsal(tmp_path, ["retro-reasoning"])
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    config = build_run_config(values | changes, "retro-reasoning")
    gate = Gate(config, torch.device("cpu"), tmp_path / "results" / config.profile / "gate")
    for label in config.methods:
        gate.run(label)
        (launched,) = GateFile.model_validate_json((gate.folder / f"{label}.json").read_text()).verdicts
        assert launched.status == "passed" and launched.checked, launched
    outcome = place.run("retro-reasoning", changes, again=False)
    assert dict(outcome.statuses) == {"ok": 8}, outcome.reasons
    assert (tmp_path / "reports" / "papers-retro-reasoning" / "index.html").stat().st_size > 1000
