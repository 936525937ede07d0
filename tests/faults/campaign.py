"""The fault campaign: kills, full disks and power cuts at random moments; a table of what survived.

``make faults`` runs it for half an hour, the tests for a minute. What is counted as changed would have been a wrong
number without a word. Damaged files, double starts, bad configurations and hostile answers have tests of their own.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import typer
import yaml

from longdecode.engine.errors import LongDecodeError
from longdecode.evals import provenance
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.records import Key, Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import Store, journal_path, read_records

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = "results/faults/summary.csv"
_PATIENCE = 1000
"""Times what the job takes undisturbed: after so long it hangs."""
CONFIG = {
    "profile": "faults",
    "device": "cpu",
    "models": {"random": {"path": "checkpoint"}},
    "methods": {"full": {}, "quest": {}},
    "budgets": [0.25, 0.5],
    "suites": {"mini_recall": {"contexts": [512], "samples": 12, "batch": 1, "tasks": ["mini_recall_single"]}},
}
"""The campaign's configuration: a job of seconds."""


@dataclass
class Row:
    """Figures of one kind of fault; ``changed`` ended in a wrong result."""

    name: str
    tried: int = 0
    survived: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True where nothing was lost, doubled or changed, and every fault was survived."""
        return not (self.lost or self.doubled or self.changed) and self.tried == self.survived

    def count(self, found: list[Record], wanted: list[Record]) -> None:
        """Compare the records of a run with those of an undisturbed one."""
        self.tried += 1
        ours, theirs = [identity_of(record) for record in found], [identity_of(record) for record in wanted]
        keys = [identity[:3] for identity in ours]
        self.lost += len({identity[:3] for identity in theirs} - set(keys))
        self.doubled += len(keys) - len(set(keys))
        self.changed += len(set(ours) - set(theirs))
        self.survived += sorted(map(repr, ours)) == sorted(map(repr, theirs))


def identity_of(record: Record) -> tuple[Any, ...]:
    return record.variant, record.key, record.index, tuple(record.output_ids or ()), record.score, record.status


@dataclass(frozen=True)
class KnownCell:
    """A cell by its key alone."""

    key: Key


def opened(output: Path, records: list[Record]) -> Store[KnownCell, Record]:
    """Return the store of some records of one job, each of which holds."""
    today = {r.key: r.provenance.fingerprint for r in records}
    cells = {r.key: KnownCell(r.key) for r in records}
    return Store(output, Record, list(cells.values()), lambda cell: today[cell.key], samples=lambda cell: 10**6)


def traced(output: Path, records: list[Record]) -> list[tuple[bytes, bytes]]:
    """Fill a store and note at every system call what is on disk for certain and what is written."""
    calls: list[tuple[bytes, bytes]] = [(b"", b"")]
    fsync, synced = os.fsync, b""

    def noted(handle: int) -> None:
        nonlocal synced
        content = journal_path(output).read_bytes()
        calls.append((synced, content))  # before: written, and nothing promised
        fsync(handle)
        synced = content
        calls.append((synced, content))

    os.fsync = noted
    try:
        with opened(output, records) as store:
            for record in records:
                store.add(record)
    finally:
        os.fsync = fsync
    return calls


class Campaign:
    """A folder with a small model and configuration, and the undisturbed results of it.

    Args:
        place: an empty folder; it becomes the current one.
        seed: of every random choice.
    """

    def __init__(self, place: Path, seed: int):
        from longdecode.training.miniature.checkpoint import save_checkpoint
        from longdecode.training.miniature.model import Miniature, MiniatureShape

        torch.set_num_threads(1)  # a forked job would wait for ever for threads that only its parent has
        self.random = random.Random(seed)
        self.place = place
        os.chdir(place)
        shape = MiniatureShape(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4)
        save_checkpoint(Miniature(shape, compiled=False), place / "checkpoint")
        (place / "run.yaml").write_text(yaml.safe_dump(CONFIG))
        self.config = build_run_config(CONFIG, "run.yaml")
        records = place / "results" / "faults" / "records" / "random"
        self.outputs = {label: records / label / "mini_recall.parquet" for label in CONFIG["methods"]}
        self.seconds = 0.0
        for _ in range(2):  # the second knows the gate's outcome
            self._clear()
            began = time.monotonic()
            self._job()
            self.seconds = time.monotonic() - began
        self.truth = self._records()

    def kills_of_a_job(self, count: int) -> Row:
        """Kill the process of a job at random moments, over and over until it ends, and begin anew."""
        row, kills = Row("kills of one job"), 0
        while kills < count:
            self._clear()
            span = self.seconds
            while not self._killed_at(self.random.uniform(0, span)):
                kills += 1
                span *= 1.1  # a machine that is busier than it was must let the job end some time
                if span > _PATIENCE * self.seconds:
                    raise RuntimeError(f"a job of {self.seconds:.1f} s did not end in {span:.0f} s")
            row.count(self._records(), self.truth)
        row.tried, row.survived = kills, kills if row.is_good else row.survived
        return row

    def full_disks(self, count: int) -> Row:
        """Let every file of a job end at a random size; then give it room: one line first, the same records after."""
        row, journal = Row("full disks"), self._journal("quest")
        for _ in range(count):
            self._clear()
            limit = self.random.randrange(200, len(journal))
            said = self.place / "said.txt"
            os.waitpid(self._fork(limit, said), 0)
            lines = said.read_text().splitlines()
            told = not lines or (len(lines) == 1 and "could not be written" in lines[0] and "are free" in lines[0])
            if not told:
                row.notes.append(f"limit {limit}: {lines[-1:]}")
            self._job()
            row.count(self._records(), self.truth)
            row.survived -= not told
        return row

    def power_cuts(self, count: int) -> Row:
        """Cut the power at a random call: what was not synced is there in part, torn or not at all."""
        row = Row("power cuts")
        truth = [record for record in self.truth if record.variant == "quest"]
        trace = traced(self.place / "traced.parquet", truth)
        for _ in range(count):
            synced, written = trace[self.random.randrange(1, len(trace))]
            kept = bytearray(written[: self.random.randint(len(synced), len(written))])
            for at in range(len(synced), len(kept)):
                if self.random.random() < 0.1:
                    kept[at] = 0  # a page that never reached the disk reads as zeros
            output = self.place / "cut.parquet"
            journal_path(output).write_bytes(kept)
            promised = truth[: synced.count(b"\n")]
            with opened(output, truth) as store:
                found = [record for cell in store.cells for record in store.of(cell)]
                row.tried += 1
                row.lost += not all(record in found for record in promised)
                row.changed += not all(record in truth for record in found)
                row.survived += found[: len(promised)] == promised
            journal_path(output).unlink()
        return row

    def kills_of_the_tree(self, count: int, seconds: float) -> Row:
        """Kill the workflow and all its jobs at random moments until it ends; compare its table."""
        row, kills, deadline = Row("kills of the whole tree"), 0, time.monotonic() + seconds
        self._remove("results")
        wanted = self._workflow_table()
        while kills < count and time.monotonic() < deadline:
            self._remove("results", ".snakemake")
            span = self.random.uniform(6, 40)
            while kills < count and time.monotonic() < deadline:
                process = subprocess.Popen(self._workflow(), stdout=-3, stderr=-3, start_new_session=True)
                try:
                    process.wait(self.random.uniform(1, span))
                    break
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    kills += 1
                    span *= 1.15
            found = self._workflow_table()
            row.lost += len(wanted) - min(len(wanted), len(found))
            row.changed += not found.equals(wanted)
            row.doubled += int(found["n"].max() > wanted["n"].max())
        row.tried = kills
        row.survived = kills if not (row.lost or row.changed or row.doubled) else 0
        return row

    def _workflow(self) -> list[str]:
        places = ["--snakefile", str(ROOT / "Snakefile"), "--directory", str(self.place), "--cores", "2"]
        return [
            sys.executable, "-m", "snakemake", *places, "--workflow-profile", str(ROOT / "profiles" / "default"),
            "--configfile", "run.yaml", "--", SUMMARY,
        ]  # fmt: skip

    def _workflow_table(self) -> pd.DataFrame:
        subprocess.run(self._workflow(), check=True, capture_output=True)
        return pd.read_csv(self.place / SUMMARY)

    def _remove(self, *folders: str) -> None:
        for name in folders:
            shutil.rmtree(self.place / name, ignore_errors=True)

    def _job(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            evaluate_suite(self.config, "random", "mini_recall", self.outputs)

    def _journal(self, variant: str) -> bytes:
        """Return what the journal of a variant held before its last batch was in the table."""
        output = self.place / "whole.parquet"
        records = [record for record in self.truth if record.variant == variant]
        with opened(output, records) as store:
            for record in records:
                store.add(record)
        raw = journal_path(output).read_bytes()
        journal_path(output).unlink()
        return raw

    def _records(self) -> list[Record]:
        return [record for output in self.outputs.values() for record in read_records(output, Record)]

    def _clear(self) -> None:
        for room in ("records", "journal"):
            self._remove(f"results/faults/{room}")

    def _fork(self, file_bytes: int | None = None, said: Path | None = None) -> int:
        """Run the job in a child, which has all modules loaded; it may say one line and have a limit on its files."""
        if pid := os.fork():
            return pid
        code, line = 0, ""
        try:
            if file_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
            self._job()
        except LongDecodeError as error:
            code, line = 1, str(error)
        except BaseException as error:
            code, line = 2, f"{type(error).__name__}: {error}"
        if said is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            said.write_text(line)
        os._exit(code)

    def _killed_at(self, seconds: float) -> bool:
        """Run the job in a child and kill it after some time; tell whether it had ended by then."""
        pid, deadline = self._fork(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return False


def run(
    campaign: Campaign, size: float, tree_kills: int, tree_seconds: float, kills: int | None = None
) -> Iterator[Row]:
    """Yield the rows of a campaign; ``size`` 1 is half an hour on two processors."""
    yield campaign.kills_of_a_job(kills or max(6, int(100 * size)))
    yield campaign.full_disks(max(4, int(60 * size)))
    yield campaign.power_cuts(max(50, int(1000 * size)))
    if tree_kills:
        yield campaign.kills_of_the_tree(tree_kills, tree_seconds)


def main(minutes: float = 30, size: float = 1.0, kills: int | None = None, tree_kills: int = 30, seed: int = 0) -> None:
    """Run the campaign and print its table: minutes for kills of the tree, a share of the full counts of the rest."""
    seed = seed or int(datetime.date.today().strftime("%Y%m%d"))
    began = time.monotonic()
    state = f"{provenance.revision()[:12]}{' and changes' if provenance.is_dirty() else ''}"
    print(f"seed {seed}, revision {state}, {datetime.date.today()}\n")
    print("| fault | tried | survived | lost | doubled | changed |\n|---|---|---|---|---|---|")
    good = True
    with tempfile.TemporaryDirectory() as place:
        for row in run(Campaign(Path(place), seed), size, tree_kills, 60 * minutes, kills):
            cells = (row.name, row.tried, row.survived, row.lost, row.doubled, row.changed)
            print(f"| {' | '.join(map(str, cells))} |", *([] if row.is_good else row.notes[:5]), sep="\n", flush=True)
            good = good and row.is_good
        os.chdir(ROOT)
    print(f"\n{time.monotonic() - began:.0f} s")
    if not good:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
