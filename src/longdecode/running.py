"""Run the workflow behind one progress display: cost first, then cells done and time left, then three lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from longdecode.engine.errors import ConfigError
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.plan import config_path
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.sweep import lines
from longdecode.reporting import terminal

FINISHED = re.compile(r"^Finished jobid: \d+ \(Rule: (\w+)\)")
STEPS = re.compile(r"^(\d+) of (\d+) steps")
SAID = re.compile(r"^(\w+Error|MissingInputException|WorkflowError)\b")


@dataclass
class Told:
    """Read what Snakemake prints: jobs and cells done, and what went wrong.

    Args:
        cells: by rule, the cells that one job of it scores.
        total: cells of all jobs.
    """

    cells: Mapping[str, float]
    total: float
    steps: str = "0/0"
    scored: float = 0
    rule: str = ""
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    began: float = field(default_factory=time.monotonic)

    def read(self, line: str) -> str | None:
        """Take in a line; return one to show where a job ended."""
        if found := FINISHED.match(line):
            self.rule = found[1]
            self.scored += self.cells.get(found[1], 0)
        elif found := STEPS.match(line):
            self.steps = f"{found[1]}/{found[2]}"
            return self.line()
        elif line.startswith("Nothing to be done"):
            return "nothing to do: all is up to date"
        elif SAID.match(line) and line not in self.errors:
            self.errors.append(line)
        return None

    def line(self) -> str:
        """Say the job that ended, cells done, time taken, and time left by the cells scored so far."""
        cells = f"  cells {self.scored:,.0f}/{self.total:,.0f}" if self.total else ""
        rest = self.total - self.scored
        left = f"  about {clock(self.seconds * rest / self.scored)} left" if self.scored and rest else ""
        return f"[{self.steps}] {self.rule:<24}{clock(self.seconds)}{cells}{left}"

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began


def run_workflow(profile: str, cores: int, target: str, given: Sequence[str], console: Console) -> int:
    """State the cost, run Snakemake and show its progress; return its exit status.

    Args:
        profile: a configuration file, or a profile of config/.
        given: ``KEY=VALUE``, as Snakemake's ``--config`` takes them.

    Raises:
        ConfigError: there is no such configuration, a value in it is wrong, or this is no checkout of the project.
    """
    if not (REPOSITORY / "Snakefile").is_file():
        raise ConfigError("runs need a checkout of the project: git clone it, then make setup")
    path = Path(profile) if profile.endswith((".yaml", ".yml")) else config_path(REPOSITORY, profile)
    run = load_run_config(path)
    name = dict(item.split("=", 1) for item in given if "=" in item).get("profile", run.profile)
    results, page = Path("results") / name, Path("reports") / name / "index.html"
    for line in lines([run]):
        console.print(line, markup=False)
    log = results / "run.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console.print(f"log: {log}")
    told = Told(*cells_of(run))
    status = _follow(_command(path, cores, target, given), log, told, console)
    _end(run, told, status, results, page if target == "all" else results, log, console)
    return status


def cells_of(run: RunConfig) -> tuple[dict[str, float], float]:
    """Return by rule the cells of one job, and the cells of all: tasks, contexts and budgets of each variant."""
    suites: Counter[str] = Counter()
    for variant in run.methods:
        for suite in run.suites_of(variant):
            spec = run.suites[suite]
            suites[suite] += len(spec.tasks) * len(spec.contexts) * len(run.budgets_of(variant))
    jobs = {
        suite: {"suite": 1, "context": len(spec.contexts), "cell": len(spec.contexts) * len(run.methods)}[run.jobs]
        for suite, spec in run.suites.items()
    }
    return {f"evaluate_{suite}": cells / jobs[suite] for suite, cells in suites.items()}, len(run.models) * sum(
        suites.values()
    )


def _command(path: Path, cores: int, target: str, given: Sequence[str]) -> list[str]:
    own = path.resolve().parent == REPOSITORY / "config"
    where = [] if own else ["--configfile", str(path)]
    values = [*given, f"profile={path.stem}"] if own else list(given)
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--snakefile", str(REPOSITORY / "Snakefile")]
    profiles = ["--workflow-profile", str(REPOSITORY / "profiles" / "default")]
    return [*command, *profiles, target, *where, *(["--config", *values] if values else [])]


def _follow(command: list[str], log: Path, told: Told, console: Console) -> int:
    """Run a command; all that it prints goes to the log, a line a finished job to the console."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "PYTHONUNBUFFERED": "1"}
    columns = (TextColumn("{task.description}"), BarColumn())
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as child,
        Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress,
    ):
        assert child.stdout is not None
        bar = progress.add_task("starting", total=told.total or None)
        for line in child.stdout:
            kept.write(line)
            kept.flush()
            if shown := told.read(line.rstrip()):
                progress.update(bar, description=shown, completed=told.scored)
                if not console.is_terminal:
                    console.print(shown, markup=False)
    return child.returncode


def _end(run: RunConfig, told: Told, status: int, results: Path, page: Path, log: Path, console: Console) -> None:
    """Print the table and three last lines: answer, warnings, path; or what went wrong and the log."""
    if status:
        for line in told.errors:
            console.print(line, markup=False)
        console.print(f"failed after {clock(told.seconds)}: {log}")
        return
    terminal.show_ended(console, results)
    console.print(f"answer: {terminal.answer(results)}", markup=False)
    warnings = [*(["not every method is tuned"] if run.allow_untuned else []), *terminal.statuses(results)]
    console.print(f"warnings: {'; '.join(warnings) or 'none'}", markup=False)
    console.print(str(page), markup=False)


def clock(seconds: float) -> str:
    """Return seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
