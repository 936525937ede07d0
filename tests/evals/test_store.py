"""The store: records come back equal, a killed job resumes, damage is never read as other records."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faults.campaign import damages
from longdecode.analysis.declaration import read_table
from longdecode.engine.disk import LockHeldError
from longdecode.engine.errors import StorageError
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.records import Fingerprint, QualityCell, Record, RecordSchemaError, SpeedRecord
from longdecode.evals.store import (
    Store,
    arrow_schema,
    journal_path,
    read_folder,
    read_records,
    replacing,
    write_records,
    write_table,
)

Maker = Callable[..., Record]
TODAY = Fingerprint("s", "c", "m", "d")
CELL = QualityCell("full", "mini_longgen_45", 2048, FULL_BUDGET)


@pytest.fixture
def records(make_record: Maker) -> list[Record]:
    texts = ["plain", "two\nlines", "\x85\u2028 odd breaks", None]
    own = [{"sample_index": i, "score": i / 3, "output_text": text} for i, text in enumerate(texts)]
    return [make_record(parts=[0.0, 1 / 3], output_ids=[i, 255], **fields) for i, fields in enumerate(own)]


def store(path: Path, *, today: Fingerprint | None = TODAY, samples: int = 8) -> Store[QualityCell, Record]:
    return Store(path, Record, [CELL], lambda cell: today, samples=lambda cell: samples)


def write(path: Path, records: Sequence[Record]) -> None:
    """Add the records in batches of two, so that a line holds several."""
    with store(path) as opened:
        for start in range(0, len(records), 2):
            opened.add(*records[start : start + 2])


def read(path: Path) -> list[Record]:
    with store(path) as opened:
        return opened.of(CELL)


def test_records_come_back_as_they_were(tmp_path: Path, records: list[Record], make_record: Maker) -> None:
    path = tmp_path / "a" / "b.parquet"
    records += [
        make_record(sample_index=8, params={"pages": 3, "nested": {"a": [1, None]}}, budget="0.1", budget_tokens=205),
        make_record(sample_index=-1, status="oom", reason="too large", parts=None),
        make_record(sample_index=9, parts=[], output_ids=[], measures={"accepted_tokens": 2.5, "kl": 0.0}),
    ]
    write_records(path, records, Record)
    assert read_records(path, Record) == records
    write_records(path, [], Record)
    assert read_records(path, Record) == []
    write_records(tmp_path / "a" / "a.parquet", records[:1], Record)
    write_records(path, records[1:], Record)
    assert read_folder(tmp_path, Record) == records


@pytest.mark.parametrize("kind", [Record, SpeedRecord])
def test_the_columns_are_the_records_fields(kind: type[Record] | type[SpeedRecord]) -> None:
    assert arrow_schema(kind).names == list(kind.model_fields)


def test_a_job_resumes_from_its_journal_and_ends_in_one_file(tmp_path: Path, records: list[Record]) -> None:
    output = tmp_path / "records" / "m" / "s.parquet"
    assert journal_path(output) == tmp_path / "journal" / "records" / "m" / "s.jsonl"
    write(output, records[:2])
    write(output, records[2:])
    with store(output, samples=4) as opened:
        assert opened.of(CELL) == records and not opened.open([CELL])
        opened.finish()
    assert read_records(output, Record) == records == read(output) and not journal_path(output).exists()
    with store(output, samples=5) as opened:
        assert opened.open([CELL]) == [CELL] and opened.missing(CELL, range(5)) == {4}
    write_records(output, records[:1], Record)  # as Snakemake puts an older file back when a job fails
    for taken_away in (output.exists, lambda: output.unlink()):
        taken_away()
        with store(output, samples=4) as opened:
            assert opened.of(CELL) == records


def test_records_of_another_fingerprint_run_again(tmp_path: Path, records: list[Record], make_record: Maker) -> None:
    output = tmp_path / "r.parquet"
    older = make_record(sample_index=4).provenance.model_copy(update={"settings_hash": None})
    unknown = make_record(sample_index=4, provenance=older)  # measured before there were fingerprints
    write_records(output, [*records, unknown], Record)
    assert read(output) == records
    for part, value in zip(TODAY._fields, TODAY, strict=True):
        with store(output, today=TODAY._replace(**{part: f"{value} changed"})) as opened:
            assert opened.missing(CELL, range(4)) == {0, 1, 2, 3}
    with store(output, today=None) as opened:
        assert not opened.of(CELL)


def test_a_status_closes_a_cell_until_it_can_improve(tmp_path: Path, records: list[Record], make_record: Maker) -> None:
    output = tmp_path / "r.parquet"
    closed = {s: make_record(sample_index=-1, status=s, reason="x") for s in ("oom", "unsupported")}
    late = make_record(sample_index=4, status="timeout", reason="no verdict", score=None)
    for status, kept in (("oom", [*records, late]), ("unsupported", [closed["unsupported"]])):
        write(output, [*records, late])
        with store(output) as opened:
            opened.add(closed[status])
            assert opened.of(CELL) == [closed[status]] and not opened.open([CELL])
        assert read(output) == kept


def test_a_damaged_journal_gives_whole_records_alone(tmp_path: Path, records: list[Record], seed: int) -> None:
    """The rest is taken anew."""
    output = tmp_path / "r.parquet"
    write(output, records)
    journal = journal_path(output)
    raw = journal.read_bytes()
    for kind, damaged in damages(raw, random.Random(seed)).items():
        assert damaged != raw, kind
        journal.write_bytes(damaged)
        found = read(output)
        assert all(record in records for record in found), kind
        assert len(found) == (4 if kind in ("doubled line", "moved line") else len(found)) and len(found) in (0, 2, 4)
        write(output, [record for record in records if record not in found])
        assert read(output) == records, kind


def test_add_syncs_before_it_returns(tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journal_path(tmp_path / "r.parquet")
    synced: list[bytes] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        fsync(handle)
        synced.append(journal.read_bytes())

    monkeypatch.setattr(os, "fsync", watched)
    write(tmp_path / "r.parquet", records)
    assert [content.count(b"\n") for content in synced] == [1, 2] and synced[-1] == journal.read_bytes()


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python with the store opened as ``opened`` around the given lines."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    head = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from longdecode.evals.budgets import FULL_BUDGET\n"
        "from longdecode.evals.records import QualityCell, Fingerprint, Record\n"
        "from longdecode.evals.store import Store, read_records\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"cell, today = QualityCell{tuple(getattr(CELL, n) for n in ('variant', 'task', 'context'))}, None\n"
    )
    head = head.replace(", 2048), None", ", 2048, FULL_BUDGET), Fingerprint(*'scmd')")
    start = "with Store(Path(sys.argv[1]), Record, [cell], lambda cell: today, samples=lambda cell: 9) as opened:\n"
    command = [sys.executable, "-c", head + start + code, *arguments]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_full_disk_leaves_whole_batches_and_one_line(tmp_path: Path, records: list[Record]) -> None:
    """The limit on a file's size stands for a disk that fills up: in both, ``write`` takes a part and then refuses."""
    output = tmp_path / "r.parquet"
    write(output, records[:2])
    limit = journal_path(output).stat().st_size + 100
    code = (
        f"    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "    try:\n        opened.add(*opened.of(cell))\n"
        "    except Exception as error:\n        print(type(error).__name__, error)\n"
    )
    with run_python(code, str(output)) as other:
        said = other.communicate()[0]
    assert said.startswith(f"StorageError {journal_path(output)} could not be written: File too large; "), said
    assert "bytes are needed" in said and said.count("\n") == 1 and read(output) == records[:2]


def test_two_processes_cannot_fill_one_output(tmp_path: Path) -> None:
    output = tmp_path / "r.parquet"
    with run_python("    print('held', flush=True); sys.stdin.read()", str(output)) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError, match=rf"r\.jsonl\.lock .*process {other.pid}\b"):
            read(output)
        other.kill()
    assert read(output) == []


def test_a_failed_write_keeps_the_old(tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays, and no other is left."""
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)

    def half(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", half)
        with pytest.raises(StorageError, match=r"r\.parquet could not be written: No space left.*; [\d,]+ bytes are"):
            write_records(path, records[:1], Record)
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_records(path, Record) == records and list(tmp_path.iterdir()) == [path]
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"t\.csv could not be written: (Not a directory|File exists)"):
        write_table(tmp_path / "file" / "t.csv", pd.DataFrame({"a": [1]}))


@pytest.mark.parametrize("column", ["provenance", "schema_version", "task", "measures"])
def test_a_missing_column_or_another_version_is_refused(tmp_path: Path, records: list[Record], column: str) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)
    whole = pq.read_table(path).replace_schema_metadata(None)
    pq.write_table(whole.drop_columns([column]), path)
    with pytest.raises(RecordSchemaError, match=column):
        read_records(path, Record)
    pq.write_table(whole.set_column(0, "schema_version", pa.array([99] * len(records), pa.int64())), path)
    with pytest.raises(RecordSchemaError, match=r"r\.parquet.*schema_version 99"):
        read_records(path, Record)


def test_no_damage_to_a_file_is_read_as_other_records(tmp_path: Path, records: list[Record], seed: int) -> None:
    """Flipped bits over the whole file and edits by other programs: the same records or one line, nothing else."""
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)
    whole, table = path.read_bytes(), pq.read_table(path)
    generator = random.Random(seed)
    flips = [(at, 1 << generator.randrange(8)) for at in generator.sample(range(len(whole)), 60)]
    damaged = [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at, bit in flips]
    damaged += [whole[:cut] for cut in (0, 3, len(whole) // 2, len(whole) - 1)]
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            assert read_records(path, Record) == records
        except RecordSchemaError as error:
            refused += 1
            assert "r.parquet" in str(error) and "\n" not in str(error)
    assert refused >= 30  # the others hit bytes that hold no record
    scores = pa.array([0.75, *table["score"].to_pylist()[1:]], pa.float64())
    edits = [
        table.set_column(table.schema.names.index("score"), "score", scores),
        table.slice(1),
        pa.concat_tables([table, table.slice(0, 1)]),
        table.replace_schema_metadata(table.schema.metadata | {b"settings": b"{}"}),
    ]
    for content in edits:
        pq.write_table(content, path)
        with pytest.raises(RecordSchemaError, match=r"do not match their checksum.*rm "):
            read_records(path, Record)


def test_fractions_have_six_digits_whole_numbers_all_and_names_stay_text(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", pd.DataFrame({"a": ["007", "nan", "1e5"], "n": [1 / 3, 12345678.0, 1.234567e-5]}))
    assert (tmp_path / "t.csv").read_text() == "a,n\n007,0.333333\nnan,12345678\n1e5,1.23457e-05\n"
    assert read_table(tmp_path / "t.csv")["a"].tolist() == ["007", "nan", "1e5"]
