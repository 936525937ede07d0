"""Journals: whole lines survive, cut lines go, other runs' journals are set aside, two writers are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longdecode.evals.journal import Journal, JournalError, JournalLockedError
from longdecode.evals.migrations import RecordSchemaError
from longdecode.evals.records import Record

Maker = Callable[..., Record]


def write(path: Path, records: list[Record], fingerprint: str = "f") -> None:
    """Append the records in batches of two, so that a line holds several."""
    with Journal(path, fingerprint, Record) as journal:
        for start in range(0, len(records), 2):
            journal.append(*records[start : start + 2])


def read(path: Path, fingerprint: str = "f") -> list[Record]:
    with Journal(path, fingerprint, Record) as journal:
        return list(journal.records)


@pytest.fixture
def records(make_record: Maker) -> list[Record]:
    texts = ["plain", "two\nlines", "\x85\u2028 odd breaks", None]
    return [make_record(sample_index=i, score=i / 3, output_text=text) for i, text in enumerate(texts)]


def test_records_come_back_as_they_were(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "deep" / "job.jsonl"
    write(path, records[:2])
    write(path, records[2:])
    assert read(path) == records


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_line_cut_off_by_a_kill_is_dropped_and_overwritten(tmp_path: Path, records: list[Record], cut: int) -> None:
    path = tmp_path / "job.jsonl"
    write(path, records)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read(path) == records[:2]
    write(path, records[2:])
    assert read(path) == records
    assert all(json.loads(line) for line in path.read_bytes().split(b"\n")[:-1])


@pytest.mark.parametrize("lost", [slice(0, 40), slice(10, 200), slice(0, -1)])
def test_a_last_batch_of_which_a_power_cut_left_a_hole_is_dropped(
    tmp_path: Path, records: list[Record], lost: slice
) -> None:
    """A file system may persist a line's end and not its beginning, which then reads as zeros."""
    path = tmp_path / "job.jsonl"
    write(path, records)
    lines = path.read_bytes().splitlines(keepends=True)
    torn = bytearray(lines[-1])
    torn[lost] = bytes(len(torn[lost]))
    path.write_bytes(b"".join(lines[:-1]) + torn)
    assert read(path) == records[:2]
    write(path, records[2:])
    assert read(path) == records


def test_a_batch_is_synced_before_append_returns(
    tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.jsonl"
    synced: list[bytes] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        fsync(handle)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", watched)
    write(path, records)
    assert [content.count(b"\n") for content in synced] == [1, 1, 2, 3]  # header, its folder, two batches
    assert synced[-1] == path.read_bytes()


def test_a_cut_header_starts_the_journal_anew(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "job.jsonl"
    write(path, [])
    path.write_bytes(path.read_bytes()[:7])
    assert read(path) == []
    write(path, records)
    assert read(path) == records


def test_a_broken_line_in_the_middle_is_refused(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "job.jsonl"
    write(path, records)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:9] + b"\n", *lines[2:]]))
    with pytest.raises(JournalError, match=r"job\.jsonl:2"):
        read(path)


def test_another_fingerprint_sets_the_journal_aside(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "job.jsonl"
    write(path, records[:1], "old")
    write(path, records[1:2], "older")
    assert read(path, "new") == []
    assert read(tmp_path / "job.jsonl.stale-1", "old") == records[:1]
    assert read(tmp_path / "job.jsonl.stale-2", "older") == records[1:2]


def other_journal(path: Path, record: Record, **changes: Any) -> None:
    """Write a journal whose record differs from the schema."""
    fields = record.model_dump(mode="json") | changes
    path.write_text(json.dumps({"fingerprint": "f"}) + "\n" + json.dumps([fields]) + "\n")


@pytest.mark.parametrize("version", [0, 99, None, True])
def test_a_schema_without_a_migration_is_refused(tmp_path: Path, make_record: Maker, version: Any) -> None:
    path = tmp_path / "job.jsonl"
    other_journal(path, make_record(), schema_version=version)
    with pytest.raises(RecordSchemaError, match=r"job\.jsonl:2: .*schema_version"):
        read(path)


def test_a_record_that_does_not_fit_its_schema_is_refused(tmp_path: Path, make_record: Maker) -> None:
    path = tmp_path / "job.jsonl"
    other_journal(path, make_record(), sample=3)
    with pytest.raises(RecordSchemaError, match="sample"):
        read(path)


def test_two_processes_cannot_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "job.jsonl"
    code = (
        "import sys; from pathlib import Path; from longdecode.evals.journal import Journal\n"
        "from longdecode.evals.records import Record\n"
        "with Journal(Path(sys.argv[1]), 'f', Record):\n    print('held', flush=True); sys.stdin.read()"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(JournalLockedError, match=rf"job\.jsonl .*process {other.pid}\b"):
            read(path)
        other.kill()
    assert read(path) == []


def test_appending_needs_an_open_journal(tmp_path: Path, make_record: Maker) -> None:
    with pytest.raises(JournalError, match="not open"):
        Journal(tmp_path / "job.jsonl", "f", Record).append(make_record())
