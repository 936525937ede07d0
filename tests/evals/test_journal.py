"""Journals: whole lines survive, cut lines go, other runs' journals are set aside, two writers are refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longdecode.evals.journal import Journal, JournalError, JournalLockedError
from longdecode.evals.ledger import Ledger
from longdecode.evals.records import Record, RecordSchemaError

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
    assert all(json.loads(line.partition(b" ")[2]) for line in path.read_bytes().split(b"\n")[:-1])


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


def damages(lines: list[bytes]) -> dict[str, list[bytes]]:
    """Every kind of damage before the last line: flipped bits, edits, lines lost, doubled, moved or of another file."""
    edited = lines[1].replace(b'"score":0.1111111111111111', b'"score":0.9')
    assert edited != lines[1]
    flips = {
        f"bit {bit} of byte {at}": [
            *lines[:1],
            lines[1][:at] + bytes([lines[1][at] ^ 1 << bit]) + lines[1][at + 1 :],
            *lines[2:],
        ]
        for at in range(0, len(lines[1]) - 1, max(1, len(lines[1]) // 29))
        for bit in (at % 8,)
    }
    return flips | {
        "cut": [lines[0], lines[1][:9] + b"\n", *lines[2:]],
        "edited score": [lines[0], edited, *lines[2:]],
        "lost line": [lines[0], *lines[2:]],
        "doubled line": [*lines[:2], *lines[1:]],
        "moved line": [lines[0], lines[2], lines[1], *lines[3:]],
        "zeros": [lines[0], bytes(len(lines[1]) - 1) + b"\n", *lines[2:]],
        "lost header": lines[1:],
    }


def test_damage_before_the_last_line_is_refused_with_its_line_and_a_remedy_that_works(
    tmp_path: Path, make_record: Maker
) -> None:
    path = tmp_path / "job.jsonl"
    records = [make_record(sample_index=i, score=i / 9, output_text="text " * 9) for i in range(8)]
    write(path, records)
    lines = path.read_bytes().splitlines(keepends=True)
    for kind, damaged in damages(lines).items():
        path.write_bytes(b"".join(damaged))
        with pytest.raises(JournalError, match=r"job\.jsonl:[1234]: .*checksum.*`truncate -s \d+ ") as caught:
            read(path)
        assert "\n" not in str(caught.value), kind
        remedy = str(caught.value).split("`")[1]
        subprocess.run(remedy.split(), check=True)
        assert read(path) in ([], records[:2], records[:4]), kind


def test_a_journal_of_the_older_format_is_set_aside(tmp_path: Path, make_record: Maker) -> None:
    path = tmp_path / "job.jsonl"
    path.write_text('{"fingerprint": "f"}\n[]\n')
    assert read(path) == [] and (tmp_path / "job.jsonl.stale-1").exists()


def test_a_full_disk_leaves_whole_batches_and_one_line(tmp_path: Path, records: list[Record]) -> None:
    """The limit on a file's size stands for a disk that fills up: in both, ``write`` takes a part and then refuses."""
    path = tmp_path / "job.jsonl"
    write(path, records[:2])
    limit = path.stat().st_size + 100
    code = (
        "import resource, signal, sys; from pathlib import Path; from longdecode.evals.journal import Journal\n"
        "from longdecode.evals.records import Record\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "with Journal(Path(sys.argv[1]), 'f', Record) as journal:\n"
        "    try:\n        journal.append(*journal.records)\n    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    said = subprocess.run([sys.executable, "-c", code, str(path)], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"StorageError {path} could not be written: File too large; "), said
    assert "bytes are needed" in said.stdout and said.stdout.count("\n") == 1
    assert read(path) == records[:2]


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
    digest, lines = "", []
    for text in (json.dumps({"fingerprint": "f", "format": 2}), json.dumps([fields])):
        digest = hashlib.blake2b((digest + text).encode(), digest_size=8).hexdigest()
        lines.append(f"{digest} {text}\n")
    path.write_text("".join(lines))


@pytest.mark.parametrize("version", [0, 99, None, True])
def test_another_schema_is_refused(tmp_path: Path, make_record: Maker, version: Any) -> None:
    path = tmp_path / "job.jsonl"
    other_journal(path, make_record(), schema_version=version)
    with pytest.raises(RecordSchemaError, match=r"job\.jsonl:2: .*schema_version"):
        read(path)


def test_a_record_that_does_not_fit_its_schema_is_refused(tmp_path: Path, make_record: Maker) -> None:
    path = tmp_path / "job.jsonl"
    for changes in (
        {"sample": 3}, {"sample_index": -2}, {"sample_index": "0"}, {"score": float("nan")}, {"score": None},
        {"score": "0.5"}, {"score": 1.5}, {"status": "oom"}, {"status": "fine"}, {"sample_index": -1},
        {"parts": [float("inf")]}, {"budget": "0.1x"}, {"context": 0}, {"batch": 0},
    ):  # fmt: skip
        other_journal(path, make_record(), **changes)
        with pytest.raises(RecordSchemaError, match=r"job\.jsonl:2: field "):
            read(path)


def test_a_sample_that_its_cell_does_not_have_is_refused(tmp_path: Path, make_record: Maker) -> None:
    path, record = tmp_path / "job.jsonl", make_record(sample_index=999)
    write(path, [record])
    for samples, refused in ((1000, False), (999, True), (2, True)):
        with Journal(path, "f", Record) as journal:
            said = pytest.raises(RecordSchemaError, match=rf"job\.jsonl: sample 999 of .*, which has {samples}; move")
            with said if refused else contextlib.nullcontext():
                Ledger(journal, [SimpleNamespace(key=record.key)], samples=lambda cell, most=samples: most)


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
