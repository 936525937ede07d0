"""Run the workflow behind one progress display: cost first, then cells done and time left, then three lines."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from longdecode.doctor import cache_folder, reached
from longdecode.engine.errors import ConfigError
from longdecode.evals.config_values import merged, parse_yaml, read_yaml
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.plan import checked, config_path, require_target
from longdecode.evals.sweep import cells_of, cost_of, planned
from longdecode.reporting import terminal
from longdecode.reporting.progress import Told, clock

_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here: a child must not between fork and exec


def config_file(profile: str) -> Path:
    """Return the configuration that is named: a file, a profile of config/, or NAME of a NAME.yaml in this folder.

    Raises:
        ConfigError: there is none; the message gives the nearest name.
    """
    if profile.endswith((".yaml", ".yml")):
        return Path(profile)
    own, here = REPOSITORY / "config" / f"{profile}.yaml", Path(f"{profile}.yaml")
    return here if here.is_file() and not own.is_file() else config_path(REPOSITORY, profile)


def run_workflow(profile: str, cores: int, target: str, given: Sequence[str], console: Console) -> int:
    """State the cost, run Snakemake and show its progress; return its exit status.

    Args:
        profile: as ``config_file`` takes it.
        given: ``KEY=VALUE``, as Snakemake's ``--config`` takes them.

    Raises:
        ConfigError: there is no such configuration or target, or a value is wrong.
    """
    _require_writable(cache_folder()[0], "XDG_CACHE_HOME names another folder")
    _require_writable(Path(os.environ.get("TMPDIR") or tempfile.gettempdir()), "TMPDIR names another folder")
    require_target(REPOSITORY, target)
    # A key without a value has none.
    changes = {key: parse_yaml(value, f"--config {key}") for key, _, value in (item.partition("=") for item in given)}
    path = config_file(profile)
    linked = f"link the models of the checkout there: ln -s {REPOSITORY / 'models'} ."
    if path.is_relative_to(REPOSITORY) and not Path("models").exists():
        raise ConfigError(f"{path}: its paths start at {REPOSITORY}; run there, or to have results here, {linked}")
    run = checked(merged(read_yaml(path), changes), [path], changes, check_fairness=target != "tune")
    results, page = Path("results") / run.profile, Path("reports") / run.profile / "index.html"
    console.print(*planned([run]), sep="\n")
    refusal = reached() if (wanted := cost_of(run).from_hub) else ""
    if refusal:
        console.print(f"missing: {refusal}: {', '.join(wanted)} from earlier downloads, or not at all")
    for folder in (results, *[page.parent] * (target == "all")):
        _require_writable(folder, f"run in another folder, and {linked}")
    log = results / "run.log"
    console.print(f"log: {log}")
    told = Told(cells_of(run))
    # Each file of the hub is else asked for six times, half a minute long.
    offline = {"HF_HUB_OFFLINE": "1"} if refusal else {}
    try:
        status = _follow(_command(path, cores, target, given), offline, log, told, console)
    except SystemExit:  # rich's, where a pipe breaks
        print(f"ended, as nobody reads the output any more: {log}; run again to go on", file=sys.stderr)
        raise
    if status:
        ending = [*told.refused, *told.errors, f"failed after {clock(told.seconds)}: {log}"]
    else:
        terminal.show_ended(console, results)
        warnings = [*["not every method is tuned"] * run.allow_untuned, *terminal.statuses(results), *told.refused]
        ending = [f"answer: {terminal.answer(results)}", f"warnings: {'; '.join(warnings) or 'none'}"]
        ending.append(str(page if target == "all" else results))
    console.print(*ending, sep="\n")
    return status


def _require_writable(folder: Path, remedy: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}), and runs need it; {remedy}") from None


def _command(path: Path, cores: int, target: str, given: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--snakefile", str(REPOSITORY / "Snakefile")]
    profiles = ["--workflow-profile", str(REPOSITORY / "profiles" / "default")]
    return [*command, *profiles, target, "--configfile", str(path), *(["--config", *given] if given else [])]


def _follow(command: list[str], variables: dict[str, str], log: Path, told: Told, console: Console) -> int:
    """Run a command; all that it prints goes to the log, a line a finished job to the console.

    A signal that ends this process ends the command first, whether or not the command got it too; on Linux the command
    also dies with a process that had no time for that.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "PYTHONUNBUFFERED": "1"} | variables
    parent, columns = os.getpid(), (TextColumn("{task.description}"), BarColumn())
    with (
        log.open("ab", buffering=0) as kept,
        Popen(
            command, stdout=PIPE, stderr=STDOUT, errors="replace", env=environment, preexec_fn=lambda: _die_with(parent)
        ) as child,
        Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress,
    ):
        assert child.stdout is not None
        bar = progress.add_task("starting", total=None)
        try:
            for line in child.stdout:
                with suppress(OSError):  # a full disk must not hide the error that says so
                    kept.write(line.encode())
                if shown := told.read(line.rstrip()):
                    progress.update(bar, description=shown, completed=told.scored, total=told.total or None)
                    if not console.is_terminal:
                        console.print(shown)
        except KeyboardInterrupt:
            # Snakemake ends after its running jobs; without a reader it would never end, and keep the run's lock.
            # A terminal, `timeout` and Slurm signal Snakemake too: a second signal at once could lock it up for good.
            (late := threading.Timer(3, child.terminate)).start()
            deque(child.stdout, maxlen=0)
            late.cancel()
            raise
    return child.returncode


def _die_with(parent: int) -> None:
    """Have the kernel kill this child of ``parent`` when that dies, where it can; it may have died already."""
    if _PRCTL:
        _PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
