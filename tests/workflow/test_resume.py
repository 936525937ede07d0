"""Killed without warning, a run goes on from its journals and ends with the numbers of an undisturbed one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.training.miniature.checkpoint import save_checkpoint
from longdecode.training.miniature.model import Miniature, MiniatureShape

pytestmark = pytest.mark.slow
NUMBERS = ["variant", "budget", "sample_index", "prompt_sha256", "output_sha256", "score"]


def test_twice_killed_run_ends_with_the_same_numbers(
    command: Any, environment: dict[str, str], snakemake: Any, write_config: Any, tmp_path: Path
) -> None:
    """First kill: the workflow and its jobs. Second: the workflow alone, whose orphaned job the third run waits for."""
    shape = MiniatureShape(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4)
    save_checkpoint(Miniature(shape, compiled=False), tmp_path / "checkpoint")
    path = str(write_config(models={"random": {"path": str(tmp_path / "checkpoint")}}, budgets=[0.25]))
    journals, log_path = tmp_path / "results" / "trial" / "journal", tmp_path / "killed.log"
    for lines, kill in ((1, os.killpg), (3, os.kill)):
        with log_path.open("wb") as log:
            arguments = command("--configfile", path, "--", "scores")
            process = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment, start_new_session=True)
            deadline = time.monotonic() + 300
            while sum(path.read_bytes().count(b"\n") for path in journals.rglob("*.jsonl")) < lines:
                assert process.poll() is None and time.monotonic() < deadline, log_path.read_text()
                time.sleep(0.02)
            kill(process.pid, signal.SIGKILL)
            process.wait()
        assert not list(tmp_path.rglob("records/**/*.parquet"))

    snakemake("--configfile", path, "--", "scores", check=True)
    assert "Nothing to be done" in snakemake("--configfile", path, "--", "scores", check=True).stdout
    shutil.copytree(tmp_path / "results" / "trial" / "gate", tmp_path / "results" / "undisturbed" / "gate")
    snakemake("--configfile", path, "--config", "profile=undisturbed", "--", "scores", check=True)
    folders = (tmp_path / "results" / name / "records" for name in ("trial", "undisturbed"))
    resumed, whole = (pd.read_parquet(folder, columns=NUMBERS) for folder in folders)
    assert len(resumed) == 8
    pd.testing.assert_frame_equal(resumed, whole)


def test_a_job_that_fails_loses_no_record_and_is_run_again(snakemake: Any, write_config: Any, tmp_path: Path) -> None:
    """First by a clock set back once all records are there, then by a journal that cannot be written."""

    def scores(samples: int) -> str:
        suite = {"contexts": [256], "samples": samples, "batch": 1, "tasks": ["mini_recall_single"]}
        return str(snakemake("--configfile", write_config(suites={"mini_recall": suite}), "--", "scores").stdout)

    scores(2)
    trial, records = tmp_path / "results" / "trial", Path("records", "random", "quest", "mini_recall.parquet")
    for path in (trial / "gate").iterdir():
        os.utime(path, (time.time() + 3600,) * 2)
    (trial / records).unlink()
    assert "clock skew" in scores(2) and not (trial / records).exists()
    for path in (trial / "gate").iterdir():
        os.utime(path)
    assert "0 cells to run, 3 known" in scores(2)
    (journal := trial / "journal" / records.with_suffix(".jsonl")).mkdir()
    assert f"{records.stem}.jsonl could not be written" in scores(3)
    journal.rmdir()
    scores(3)
    assert [len(pd.read_parquet(trial / records)), len(list(trial.rglob("*.begun")))] == [6, 0]
