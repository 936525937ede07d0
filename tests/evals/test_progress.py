"""Scoring says on standard error when a label is through with a batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from longdecode.engine.errors import DeviceMemoryError
from longdecode.engine.generation import Generator
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.run_config import build_run_config


@pytest.mark.usefixtures("gate")
def test_each_label_says_when_its_batch_is_through_but_the_last_one_which_the_report_says(
    config_values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suites = {"mini_recall": {"contexts": [256], "samples": 3, "batch": 2, "tasks": ["mini_recall_single"]}}
    config = build_run_config(config_values | {"suites": suites}, "c")

    def said(folder: str) -> list[str]:
        outputs = {label: tmp_path / folder / f"{label}.parquet" for label in ("full", "streaming")}
        evaluate_suite(config, "tiny", "mini_recall", outputs)
        lines = [line for line in capsys.readouterr().err.splitlines() if " batch " in line]
        return [re.sub(r"\d+ s$", "0 s", line) for line in lines]

    where = "  tiny/mini_recall mini_recall_single context=256"
    through = [("full", 1), ("streaming", 1), ("full", 2)]
    assert said("a") == [f"{where} {label}: batch {number} of 2, 0 s" for label, number in through]
    assert not said("a")

    def tight(*given: Any) -> Any:
        raise DeviceMemoryError("no room beside the prompt")

    monkeypatch.setattr(Generator, "decode", tight)
    assert not said("b")
