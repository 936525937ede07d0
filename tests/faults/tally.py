"""Figures of the fault campaign, and the trace that power cuts are drawn from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longdecode.evals.journal import Journal
from longdecode.evals.records import Record


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


def traced(path: Path, records: list[Record]) -> list[tuple[bytes, bytes]]:
    """Write a journal and note at every system call what is on disk for certain and what is written."""
    calls: list[tuple[bytes, bytes]] = [(b"", b"")]
    fsync, synced = os.fsync, b""

    def noted(handle: int) -> None:
        nonlocal synced
        content = path.read_bytes()
        calls.append((synced, content))  # before: written, and nothing promised
        fsync(handle)
        synced = content
        calls.append((synced, content))

    os.fsync = noted
    try:
        with Journal(path, "f", Record) as journal:
            for record in records:
                journal.append(record)
    finally:
        os.fsync = fsync
    return calls
