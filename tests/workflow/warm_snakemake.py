"""Runs Snakemake's command line, and its jobs, in forks of one process that has imported both and hashed the code.

Reads one JSON object a line, ``arguments``, ``environment`` and ``log``, and answers with the exit status of each; with
arguments of its own it is that one command, and forks its jobs alone.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    gc.freeze()  # a job looks for cycles after every cell


def run(asked: dict[str, Any]) -> None:
    """Become the command ``python -m snakemake``."""
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = asked["arguments"]
    runpy.run_module("snakemake", run_name="__main__", alter_sys=True)


def fork(act: Callable[..., object], *given: object) -> int:
    """Act in a fork that ends at once: Python would first free all that was imported, up to two seconds a fork."""
    if child := os.fork():
        return child
    ended: object = None
    try:
        act(*given)
    except SystemExit as left:
        ended = left.code
    except BaseException:
        ended = traceback.format_exc()
    if isinstance(ended, str):
        print(ended, file=sys.stderr)
    sys.stdout.flush()
    os._exit(ended if isinstance(ended, int) else int(ended is not None))


def run_job(script: PythonScript, path: str, edit: bool = False) -> None:
    """Run a job's script in a fork, where Snakemake starts Python."""
    job = fork(lambda: runpy.run_path(path, run_name="__main__"))
    with benchmarked(job, script.bench_record or BenchmarkRecord()):
        assert os.waitpid(job, 0)[1] == 0, f"{path} failed"


def main() -> None:
    """Serve until the input ends."""
    warm()
    setattr(PythonScript, "execute_script", run_job)  # noqa: B010
    if sys.argv[1:]:
        runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
    for line in sys.stdin:
        child = fork(run, json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
