"""The tiny run on a Slurm of one node, by README's line: two controllers and one job are killed; rows as locally.

A smaller run does the same through profiles/generic, whose commands are Slurm's own, without the plugin. Both run where
root, slurm-wlm and munge are, with ``pytest -m cluster``; half an hour on two processors.
``LONGDECODE_TINY_RESULTS`` may name the results of a local tiny run of this revision, which else is made first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("one_node_slurm.sh")
TIMES = ("_ms", "revision", "device")
pytestmark = pytest.mark.cluster


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Act on a running Slurm of this machine alone: ``kill-controller``, ``start-controller``."""
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))):
        pytest.skip("needs root and `apt-get install slurm-wlm munge`")

    def act(what: str) -> None:
        subprocess.run([SCRIPT, what, tmp_path / "slurm"], check=True)

    act("start")
    yield act
    subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], check=False)
    act("stop")


def queue(state: str) -> list[str]:
    """Ids of the jobs in a state; none while the controller is away."""
    asked = subprocess.run(["squeue", "-h", "-t", state, "-o", "%i"], capture_output=True, text=True, check=False)
    return asked.stdout.split()


def table(folder: Path, name: str) -> pd.DataFrame:
    """A summary without what differs between machines and revisions."""
    frame = pd.read_csv(folder / name)
    return frame[[column for column in frame if not column.endswith(TIMES)]]


def snakemake(folder: Path, *arguments: str) -> list[str]:
    return [
        sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder),
        "--config", "profile=tiny", *arguments, "--", "all",
    ]  # fmt: skip


def test_tiny_on_slurm_has_the_rows_of_a_local_run(tmp_path: Path, slurm: Callable[[str], None]) -> None:
    local, cluster = tmp_path / "local", tmp_path / "cluster"
    for folder in (local, cluster):
        folder.mkdir()
        (folder / "models").symlink_to(ROOT / "models")
    reference = os.environ.get("LONGDECODE_TINY_RESULTS")
    if reference is None:
        subprocess.run(snakemake(local, "--cores", "8", "--resources", "gpu=1"), check=True)
    log = tmp_path / "snakemake.log"
    command = snakemake(cluster, "--workflow-profile", str(ROOT / "profiles" / "slurm"))
    killed_jobs = killed_controllers = 0
    with log.open("w") as said, subprocess.Popen(command, stdout=said, stderr=said) as workflow:
        began = settled = time.monotonic()
        before: list[str] = []
        while workflow.poll() is None:
            assert time.monotonic() - began < 3600, log.read_text()[-3000:]
            running = queue("RUNNING")
            if running != before:
                before, settled = running, time.monotonic()
            # A controller saves its state every few seconds; what it started after that it starts twice.
            if running and killed_controllers < 2 and time.monotonic() - settled > 12:
                slurm("kill-controller")
                time.sleep(10)
                slurm("start-controller")
                killed_controllers += 1
                settled = time.monotonic() + 30
            elif killed_controllers and running and not killed_jobs and list(cluster.rglob("journal/**/*.jsonl")):
                subprocess.run(["scancel", "--full", "--signal=KILL", running[-1]], check=True)
                killed_jobs += 1
            time.sleep(1)
    assert workflow.returncode == 0, log.read_text()[-3000:]
    assert (killed_controllers, killed_jobs) == (2, 1) and (cluster / "reports" / "tiny" / "index.html").exists()
    theirs = Path(reference) if reference else local / "results" / "tiny"
    pd.testing.assert_frame_equal(table(cluster / "results" / "tiny", "summary.csv"), table(theirs, "summary.csv"))


def test_the_generic_profile_on_slurm_queues_a_killed_job_again(tmp_path: Path, slurm: Callable[[str], None]) -> None:
    config = tmp_path / "trial.yaml"
    suite = {"contexts": [1024], "samples": 24, "batch": 1, "tasks": ["mini_recall_single"]}
    values = {"profile": "trial", "device": "cpu", "models": {"miniature": {"path": "models/miniature/weights"}}}
    values |= {"methods": {"full": {}, "quest": {}}, "budgets": [0.25], "suites": {"mini_recall": suite}}
    config.write_text(yaml.safe_dump(values))
    summary = "results/trial/summary.csv"

    def command(folder: Path, *arguments: str) -> list[str]:
        folder.mkdir()
        for name in ("models", "profiles"):
            (folder / name).symlink_to(ROOT / name)
        places = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder), "--configfile", str(config)]
        return [sys.executable, "-m", "snakemake", *places, *arguments, "--", summary]

    local, cluster, log = tmp_path / "local", tmp_path / "cluster", tmp_path / "snakemake.log"
    subprocess.run(command(local, "--cores", "2"), check=True)
    killed: list[str] = []
    submitted = command(cluster, "--workflow-profile", str(ROOT / "profiles" / "generic"))
    with log.open("w") as said, subprocess.Popen(submitted, stdout=said, stderr=said, cwd=cluster) as workflow:
        began = time.monotonic()
        while workflow.poll() is None:
            assert time.monotonic() - began < 1800, log.read_text()[-3000:]
            journals = [path for path in cluster.rglob("journal/**/*.jsonl") if path.read_bytes().count(b"\n") > 2]
            if not killed and journals and (running := queue("RUNNING")):
                subprocess.run(["scancel", "--full", "--signal=KILL", running[-1]], check=True)
                killed.append(running[-1])
            time.sleep(0.5)
    text = log.read_text()
    assert workflow.returncode == 0, text[-3000:]
    assert killed and "mem_mb=32000" in text  # the second attempt asked for twice the memory
    assert list(cluster.glob(".snakemake/cluster-*.log"))
    pd.testing.assert_frame_equal(
        table(cluster / "results" / "trial", "summary.csv"), table(local / "results" / "trial", "summary.csv")
    )
    status = [str(ROOT / "profiles" / "generic" / "status.sh"), "999999"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == "failed\n"
