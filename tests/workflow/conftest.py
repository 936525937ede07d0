"""Snakemake in a folder of its own, with the project's Snakefile and profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., list[str]]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """This environment less what only the tests' own process should see, with no GPU to find."""
    kept = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "PYTEST_CURRENT_TEST")}
    return kept | {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Maker of a Snakemake command line whose results land in the test's folder, the shipped model and roles beside.

    The interpreter's path has a space in it.
    """
    (tmp_path / "models").symlink_to(ROOT / "models")
    (home := tmp_path / "an environment").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (home / name).symlink_to(Path(sys.prefix) / name)

    def make(*arguments: str, profile: str = "default") -> list[str]:
        places = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(tmp_path)]
        places += ["--workflow-profile", str(ROOT / "profiles" / profile)]
        return [str(home / "bin" / Path(sys.executable).name), "-m", "snakemake", *places, *arguments]

    return make


@pytest.fixture(scope="session")
def server(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that starts Snakemake in a second instead of five, and its jobs at once."""
    asked = [sys.executable, "-u", Path(__file__).with_name("warm_snakemake.py")]
    with subprocess.Popen(asked, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def snakemake(command: Command, environment: dict[str, str], server: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Runner of one Snakemake command; gives back its exit status and all that it printed, as ``stdout``."""

    def run(*arguments: str, check: bool = False, profile: str = "default") -> subprocess.CompletedProcess[str]:
        asked = command(*map(str, arguments), profile=profile)
        log = tmp_path / "said.log"
        log.unlink(missing_ok=True)
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps({"arguments": asked[3:], "environment": environment, "log": str(log)}) + "\n")
        server.stdin.flush()
        done = subprocess.CompletedProcess(asked, int(server.stdout.readline()), log.read_text())
        if check:
            assert done.returncode == 0, done.stdout
        return done

    return run


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """Writer of a small valid configuration, with top-level keys replaced by the keyword arguments."""

    def write(name: str = "run.yaml", **changes: Any) -> Path:
        values: dict[str, Any] = {
            "profile": "trial", "device": "cpu", "models": {"random": {"path": "models/miniature/weights"}},
            "methods": {"full": {}, "quest": {}}, "budgets": [0.25, 0.5],
            "suites": {"mini_recall": {"contexts": [1024], "samples": 4, "batch": 1, "tasks": ["mini_recall_single"]}},
        }  # fmt: skip
        path = tmp_path / name
        path.write_text(yaml.safe_dump(values | changes, sort_keys=False))
        return path

    return write
