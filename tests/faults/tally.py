"""Figures of the fault campaign, and the trace that power cuts are drawn from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longdecode.evals.records import Key, Record
from longdecode.evals.store import Store, journal_path

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
    """Figures of one kind of fault; ``refused`` ended in one line of ours, ``changed`` in a wrong result."""

    name: str
    tried: int = 0
    survived: int = 0
    refused: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True where nothing was lost, doubled or changed, and every fault ended one way or the other."""
        return not (self.lost or self.doubled or self.changed) and self.tried == self.survived + self.refused

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
