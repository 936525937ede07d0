"""Journals: whole lines survive, cut lines go, other runs' journals are set aside, two writers are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longdecode.evals.journal import Journal, JournalError, JournalLockedError
from longdecode.evals.migrations import RecordSchemaError
from longdecode.evals.records import SCHEMA_VERSION, Record

Maker = Callable[..., Record]


def write(path: Path, records: list[Record], fingerprint: str = "f") -> None:
    with Journal(path, fingerprint) as journal:
        for record in records:
            journal.append(record)


def read(path: Path, fingerprint: str = "f", **options: Any) -> list[Record]:
    with Journal(path, fingerprint, **options) as journal:
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
    assert read(path) == records[:-1]
    write(path, [records[-1]])
    assert read(path) == records
    assert all(json.loads(line) for line in path.read_bytes().split(b"\n")[:-1])


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
    path.write_bytes(b"".join([*lines[:2], lines[2][:9] + b"\n", *lines[3:]]))
    with pytest.raises(JournalError, match=r"job\.jsonl:3"):
        read(path)


def test_another_fingerprint_sets_the_journal_aside(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "job.jsonl"
    write(path, records[:1], "old")
    write(path, records[1:2], "older")
    assert read(path, "new") == []
    assert read(tmp_path / "job.jsonl.stale-1", "old") == records[:1]
    assert read(tmp_path / "job.jsonl.stale-2", "older") == records[1:2]


def older_journal(path: Path, record: Record, version: Any) -> None:
    fields = record.model_dump(mode="json") | {"schema_version": version}
    fields["sample"] = fields.pop("sample_index")
    header = {"fingerprint": "f", "schema_version": version}
    path.write_text(json.dumps(header) + "\n" + json.dumps(fields) + "\n")


def rename(fields: dict[str, Any]) -> dict[str, Any]:
    return {("sample_index" if name == "sample" else name): value for name, value in fields.items()}


def test_an_older_schema_is_migrated_step_by_step(tmp_path: Path, make_record: Maker) -> None:
    path = tmp_path / "job.jsonl"
    record = make_record(sample_index=3)
    older_journal(path, record, SCHEMA_VERSION - 2)
    table = {SCHEMA_VERSION - 2: lambda fields: fields | {"reason": "first"}, SCHEMA_VERSION - 1: rename}
    assert read(path, migrations=table) == [record.model_copy(update={"reason": "first"})]


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, None, True])
def test_a_schema_without_a_migration_is_refused(tmp_path: Path, make_record: Maker, version: Any) -> None:
    path = tmp_path / "job.jsonl"
    older_journal(path, make_record(), version)
    with pytest.raises(RecordSchemaError, match=r"job\.jsonl:2: .*schema_version"):
        read(path)


def test_a_record_that_does_not_fit_its_schema_is_refused(tmp_path: Path, make_record: Maker) -> None:
    path = tmp_path / "job.jsonl"
    older_journal(path, make_record(), SCHEMA_VERSION)
    with pytest.raises(RecordSchemaError, match="sample"):
        read(path)


def test_two_processes_cannot_write_one_journal(tmp_path: Path) -> None:
    path = tmp_path / "job.jsonl"
    code = (
        "import sys; from pathlib import Path; from longdecode.evals.journal import Journal\n"
        "with Journal(Path(sys.argv[1]), 'f'):\n    print('held', flush=True); sys.stdin.read()"
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
        Journal(tmp_path / "job.jsonl", "f").append(make_record())
