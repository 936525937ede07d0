"""Runs Snakemake's command line, and its jobs, in forks of one process that has imported both and hashed the code.

Reads one JSON object a line, ``arguments``, ``environment`` and ``log``, and answers with the exit status of each.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
from pathlib import Path

import smart_open  # noqa: F401 (imported for the forks, as all below that is not used)
import snakemake.cli
import torch._dynamo  # noqa: F401
import yaml
from snakemake.benchmark import BenchmarkRecord, benchmarked
from snakemake.script import PythonScript

import longdecode.evals.evaluate
import longdecode.evals.preflight
import longdecode.learned  # noqa: F401
from longdecode.evals.plan import Plan
from longdecode.evals.run_config import build_run_config

ROOT = Path(__file__).resolve().parents[2]


def warm() -> None:
    """Import what checks a configuration, and hash what a plan asks for: both are kept, and forked."""
    snakemake.cli.get_argument_parser()
    values = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    plan = Plan(build_run_config(values, "demo"), ROOT)
    for room in ("analysis", "evals", "methods", "reporting"):
        plan.folder_hash(room)
    for suite in values["suites"]:
        plan.depends("evaluate", model="miniature", suite=suite)
    plan.depends("gate")
    gc.collect()
    gc.freeze()  # a job looks for cycles after every cell, and Python at the end of a fork


def run(arguments: list[str], environment: dict[str, str]) -> None:
    """Become the command ``python -m snakemake``."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    runpy.run_module("snakemake", run_name="__main__", alter_sys=True)


def run_job(script: PythonScript, path: str, edit: bool = False) -> None:
    """Run a job's script in a fork, where Snakemake starts Python."""
    if not (job := os.fork()):
        try:
            runpy.run_path(path, run_name="__main__")
            os._exit(0)
        finally:
            os._exit(1)
    with benchmarked(job, script.bench_record or BenchmarkRecord()):
        assert os.waitpid(job, 0)[1] == 0, f"{path} failed"


def main() -> None:
    """Serve until the input ends."""
    warm()
    setattr(PythonScript, "execute_script", run_job)  # noqa: B010
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            run(asked["arguments"], asked["environment"])
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
