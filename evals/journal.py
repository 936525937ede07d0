"""The JSONL journal of one job: each record is on disk before the next is computed, so a killed run loses one batch."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, Self, TypeVar

from pydantic import BaseModel

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.migrations import Migration, load_record
from longdecode.evals.records import SCHEMA_VERSION, Record

R = TypeVar("R", bound=BaseModel)


class JournalError(LongDecodeError):
    """A journal holds something that is neither a whole record nor a line cut off at the very end."""


class JournalLockedError(JournalError):
    """Another process is writing this journal."""


class BaseJournal(Generic[R]):
    """Append-only records of one job under an exclusive lock; a context manager.

    The first line is a header with the fingerprint of whatever determines the numbers. On opening, a last line cut off
    by a kill is dropped, and a journal with another fingerprint is set aside as ``<name>.stale-<n>``.

    Args:
        path: the journal file; folders are made as needed.
        fingerprint: must match the header for the records to be reused.
    """

    schema_version: int

    def __init__(self, path: Path, fingerprint: str):
        self.path = path
        self.fingerprint = fingerprint
        self.records: list[R] = []
        self._lock: BinaryIO | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Lock the journal, read what it holds and make it ready to append to.

        Raises:
            JournalLockedError: another process holds the lock; the message names its id and the file.
            JournalError: a line before the last is not JSON.
            RecordSchemaError: a record's schema version cannot be migrated.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        try:
            self._load()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def append(self, record: R) -> None:
        """Write one record and wait until it is on disk."""
        self._write(record.model_dump_json())
        self.records.append(record)

    def _read(self, fields: dict[str, Any], source: str) -> R:
        """One record from its stored fields."""
        raise NotImplementedError

    def _load(self) -> None:
        raw = self.path.read_bytes() if self.path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = [self._parse(number, line) for number, line in enumerate(whole.splitlines(), 1)]
        if lines and lines[0].get("fingerprint") != self.fingerprint:
            self.path.rename(_free_name(self.path))
            lines = []
        self.records = [self._read(fields, f"{self.path}:{number}") for number, fields in enumerate(lines[1:], 2)]
        self._file = self.path.open("ab")
        if lines:
            self._file.truncate(len(whole))
        else:
            self._file.truncate(0)
            self._write(json.dumps({"fingerprint": self.fingerprint, "schema_version": self.schema_version}))

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise JournalError(f"{self.path}:{number}: not JSON; move the file away to start anew") from error
        if not isinstance(fields, dict):
            raise JournalError(f"{self.path}:{number}: not a JSON object; move the file away to start anew")
        return fields

    def _write(self, line: str) -> None:
        if self._file is None:
            raise JournalError(f"{self.path}: the journal is not open")
        self._file.write(line.encode() + b"\n")
        self._file.flush()  # enough for a killed process; a line lost with the whole machine is run again

    def _close(self) -> None:
        for handle in (self._file, self._lock):
            if handle is not None:
                handle.close()
        self._file = self._lock = None


class Journal(BaseJournal[Record]):
    """The journal of a quality job.

    Args:
        migrations: the table for records of older schemas; the project's own by default.
    """

    schema_version = SCHEMA_VERSION

    def __init__(self, path: Path, fingerprint: str, migrations: Mapping[int, Migration] | None = None):
        super().__init__(path, fingerprint)
        self._migrations = migrations

    def _read(self, fields: dict[str, Any], source: str) -> Record:
        return load_record(fields, source, self._migrations)


def _lock(path: Path) -> BinaryIO:
    """Lock a file beside ``path``; it stays behind, because removing it would let two processes hold two locks."""
    name = path.with_name(path.name + ".lock")
    handle = name.open("a+b")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.seek(0)
        owner = handle.read().decode(errors="replace").strip() or "unknown"
        handle.close()
        raise JournalLockedError(f"{path} is being written by process {owner} (lock file {name})") from error
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n".encode())
    handle.flush()
    return handle


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_name(f"{path.name}.stale-{number}")).exists():
        number += 1
    return name
