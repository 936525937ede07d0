"""The fault campaign: kills, double starts, damages, full disks and power cuts at random; a table of what survived.

``make faults`` runs it, the tests a minute of it. What is counted as changed would have been a wrong number without a
word. Bad configurations, damaged checkpoints and hostile answers have tests of their own.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
import typer
import yaml

from longdecode.engine.errors import LongDecodeError
from longdecode.evals import provenance
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import Store, journal_path, kept_path, read_records

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = "results/faults/summary.csv"
RUN = (sys.executable, "-m", "longdecode", "run", "run.yaml", "--cores", "2", "--target", SUMMARY)
_PATIENCE = 1000
"""Times what the job takes undisturbed: after so long it hangs."""
CONFIG = {
    "profile": "faults", "device": "cpu", "models": {"random": {"path": "checkpoint"}},
    "methods": {"full": {}, "quest": {}}, "budgets": [0.25, 0.5],
    "suites": {"mini_recall": {"contexts": [512], "samples": 12, "batch": 1, "tasks": ["mini_recall_single"]}},
}  # fmt: skip
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


def opened(output: Path, records: list[Record]) -> Store[Any, Record]:
    """Return the store of some records of one job, each of which holds."""
    today = {r.key: r.provenance.fingerprint for r in records}
    cells = [SimpleNamespace(key=key) for key in today]
    return Store(output, Record, cells, lambda cell: today[cell.key], samples=lambda cell: 10**6)


def damages(raw: bytes, rng: random.Random) -> dict[str, bytes]:
    """Kinds of damage: cut ends, holes that a power cut leaves, flipped bits, edits, lines lost, doubled or moved."""
    lines = raw.splitlines(keepends=True)
    places = rng.sample(range(len(raw)), 30)
    flips = {f"bit {at}": raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :] for at in places}
    return flips | {
        "cut": raw[: -rng.randrange(1, 200)],
        "newline lost": raw[:-1],
        "hole": raw[:-200] + bytes(150) + raw[-50:],
        "edited score": raw.replace(b'"score":0.3333333333333333', b'"score":0.9333333333333333'),
        "lost line": b"".join(lines[1:]),
        "doubled line": b"".join([*lines, lines[0]]),
        "moved line": b"".join(reversed(lines)),
    }


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
            self._ends(row, "could not be written.* are free", f"limit {limit}", self._fork(self._job, limit))
            self._job()
            row.count(self._records(), self.truth)
        return row

    def damages(self, count: int) -> Row:
        """Damage a table, its copy or a journal: the same records, or one line and, without that file, the same."""
        row, whole = Row("damages"), self.place / "whole"
        self._clear()
        self._job()
        shutil.copytree("results", whole)
        for _ in range(count):
            self._remove("results")
            shutil.copytree(whole, "results")
            variant, output = self.random.choice([*self.outputs.items()])
            path = self.random.choice([output, kept_path(output), journal_path(output)])
            raw = path.read_bytes() if path.exists() else self._journal(variant)
            for whole_file in (output, kept_path(output)) if not path.exists() else ():
                whole_file.unlink()
            kind, damaged = self.random.choice([pair for pair in damages(raw, self.random).items() if pair[1] != raw])
            path.write_bytes(damaged)
            if self._ends(row, f"{path.name}: .*; remove it", f"{path.name}, {kind}", self._fork(self._job)):
                path.unlink()
                self._job()
            row.count(self._records(), self.truth)
        return row

    def double_starts(self, name: str, count: int, start: Callable[[], None], seconds: float) -> Row:
        """Start a job or the command twice, a random while apart: one works, the other names it or finds all done."""
        row = Row(f"double starts of {name}")
        for _ in range(count):
            self._clear()
            first = self._fork(start)
            time.sleep(self.random.uniform(0, seconds))
            self._ends(row, r"process \d+ of ", "twice", first, self._fork(start))
            row.count(self._records(), self.truth)
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
        """Kill the command and all its jobs at random moments until it ends; compare its table."""
        row, kills, deadline = Row("kills of the whole tree"), 0, time.monotonic() + seconds
        self._remove("results")
        wanted = self._table()
        while kills < count and time.monotonic() < deadline:
            self._remove("results", ".snakemake")
            span = self.random.uniform(6, 40)
            while kills < count and time.monotonic() < deadline:
                process = subprocess.Popen(RUN, stdout=-3, stderr=-3, start_new_session=True)
                try:
                    process.wait(self.random.uniform(1, span))
                    break
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    kills += 1
                    span *= 1.15
            found = self._table()
            row.lost += len(wanted) - min(len(wanted), len(found))
            row.changed += not found.equals(wanted)
            row.doubled += int(found["n"].max() > wanted["n"].max())
        row.tried = kills
        row.survived = kills if not (row.lost or row.changed or row.doubled) else 0
        return row

    def _command(self) -> None:
        done = subprocess.run(RUN, capture_output=True, text=True)
        if done.returncode:
            raise LongDecodeError(" ".join(done.stdout.split()))

    def _table(self) -> pd.DataFrame:
        self._command()
        return pd.read_csv(SUMMARY)

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
        written = filter(Path.exists, self.outputs.values())
        return [record for output in written for record in read_records(output, Record)]

    def _clear(self) -> None:
        self._remove("results/faults/records", "results/faults/journal")
        Path(SUMMARY).unlink(missing_ok=True)

    def _fork(self, act: Callable[[], None], file_bytes: int | None = None) -> int:
        """Act in a child, which has all modules loaded; it leaves a line, and its files may have a limit."""
        if pid := os.fork():
            return pid
        code, line = 0, ""
        try:
            if file_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
            act()
        except LongDecodeError as error:
            code, line = 1, str(error)
        except BaseException as error:
            code, line = 2, f"{type(error).__name__}: {error}"
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        Path(f"said.{os.getpid()}").write_text(line)
        os._exit(code)

    def _ends(self, row: Row, told: str, fault: str, *pids: int) -> list[str]:
        """Wait for jobs and return what they say; more than a line, or another one, is not survived."""
        lines = list[str]()
        for pid, said in ((pid, Path(f"said.{pid}")) for pid in pids):
            os.waitpid(pid, 0)
            lines += said.read_text().splitlines() if said.exists() else ["it died"]
        if len(lines) > 1 or not all(re.search(told, line) for line in lines):
            row.notes.append(f"{fault}: {lines[-1:]}")
            row.survived -= 1
        return lines

    def _killed_at(self, seconds: float) -> bool:
        """Run the job in a child and kill it after some time; tell whether it had ended by then."""
        pid, deadline = self._fork(self._job), time.monotonic() + seconds
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
    """Yield the rows of a campaign, at ``size`` 1 in full; without kills of the tree, no command either."""
    yield campaign.kills_of_a_job(kills or max(6, int(100 * size)))
    yield campaign.double_starts("a job", max(4, int(40 * size)), campaign._job, campaign.seconds)
    yield campaign.damages(max(20, int(400 * size)))
    yield campaign.full_disks(max(4, int(60 * size)))
    yield campaign.power_cuts(max(50, int(1000 * size)))
    if tree_kills:
        yield campaign.double_starts("the command", max(1, int(6 * size)), campaign._command, 15)
        yield campaign.kills_of_the_tree(tree_kills, tree_seconds)


def main(minutes: float = 30, size: float = 1.0, kills: int | None = None, tree_kills: int = 30, seed: int = 0) -> None:
    """Print the campaign's table as CSV: minutes for kills of the tree, a share of the full counts of the rest."""
    seed = seed or int(datetime.date.today().strftime("%Y%m%d"))
    began, good = time.monotonic(), True
    state = f"{provenance.revision()[:12]}{' and changes' if provenance.is_dirty() else ''}"
    print("fault,tried,survived,lost,doubled,changed,seconds,seed,revision,date")
    with tempfile.TemporaryDirectory() as place:
        for row in run(Campaign(Path(place), seed), size, tree_kills, 60 * minutes, kills):
            seconds, began = time.monotonic() - began, time.monotonic()
            counts = (row.tried, row.survived, row.lost, row.doubled, row.changed, round(seconds))
            print(row.name, *counts, seed, state, datetime.date.today(), sep=",", flush=True)
            print(*([] if row.is_good else row.notes[:5]), sep="\n", end="", file=sys.stderr, flush=True)
            good = good and row.is_good
        os.chdir(ROOT)
    if not good:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
