"""Snakemake in a folder of its own, with the project's Snakefile and profile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., list[str]]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment() -> dict[str, str]:
    """This environment less what only the tests' own process should see, with no GPU to find."""
    kept = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "PYTEST_CURRENT_TEST")}
    return kept | {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Maker of a Snakemake command line whose results land in the test's folder, the shipped model and roles beside."""
    (tmp_path / "miniature").symlink_to(ROOT / "miniature")

    def make(*arguments: str) -> list[str]:
        places = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
        profile = ["--workflow-profile", str(ROOT / "profiles" / "default")]
        return [sys.executable, "-m", "snakemake", *places, *profile, *arguments]

    return make


@pytest.fixture
def snakemake(command: Command, environment: dict[str, str]) -> Run:
    """Runner of one Snakemake command; gives back its exit status and all that it printed, as ``stdout``."""

    def run(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            timeout=600,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stdout
        return done

    return run


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """Writer of a small valid configuration, with top-level keys replaced by the keyword arguments."""

    def write(name: str = "run.yaml", **changes: Any) -> Path:
        values: dict[str, Any] = {
            "profile": "trial",
            "device": "cpu",
            "models": {"random": {"path": "miniature/weights"}},
            "methods": {"full": {}, "quest": {}},
            "budgets": [0.25, 0.5],
            "suites": {"mini_recall": {"contexts": [1024], "samples": 4, "batch": 1, "tasks": ["mini_recall_single"]}},
        }
        path = tmp_path / name
        path.write_text(yaml.safe_dump(values | changes, sort_keys=False))
        return path

    return write
