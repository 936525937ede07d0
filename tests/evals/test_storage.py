"""Parquet: records come back equal, half-written files never appear, unknown schemas are refused."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longdecode.engine.errors import StorageError
from longdecode.evals import storage
from longdecode.evals.records import Record, RecordSchemaError, SpeedRecord
from longdecode.evals.storage import arrow_schema, read_folder, read_records, stamped_settings, write_records

Maker = Callable[..., Record]


@pytest.fixture
def records(make_record: Maker) -> list[Record]:
    return [
        make_record(sample_index=0, score=0.25, parts=[0.0, 1.0, 1 / 3], output_ids=[1, 255], output_text="\xff\n"),
        make_record(sample_index=1, params={"pages": 3, "nested": {"a": [1, None]}}, budget="0.1", budget_tokens=205),
        make_record(sample_index=-1, status="oom", reason="too large", parts=None),
        make_record(sample_index=2, parts=[], output_ids=[], measures={"accepted_tokens": 2.5, "kl": 0.0}),
    ]


def test_records_come_back_as_they_were(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "a" / "b.parquet"
    write_records(path, records, Record)
    assert read_records(path, Record) == records
    write_records(path, [], Record)
    assert read_records(path, Record) == []


@pytest.mark.parametrize("kind", [Record, SpeedRecord])
def test_the_columns_are_the_records_fields(kind: type[Record] | type[SpeedRecord]) -> None:
    assert arrow_schema(kind).names == list(kind.model_fields)


def test_records_of_other_settings_are_not_taken_up(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "r.parquet"
    assert read_records(path, Record, "f") == []
    write_records(path, records, Record, "f")
    assert read_records(path, Record, "f") == read_records(path, Record) == records
    assert read_records(path, Record, "g") == []
    write_records(path, records, Record)
    assert read_records(path, Record, "f") == []


def test_a_folder_is_read_in_path_order(tmp_path: Path, records: list[Record]) -> None:
    write_records(tmp_path / "z.parquet", records[:1], Record)
    write_records(tmp_path / "a" / "y.parquet", records[1:], Record)
    assert read_folder(tmp_path, Record) == [*records[1:], *records[:1]]


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)

    def half(table: pa.Table, where: Path) -> None:
        where.write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr(storage, "_write_parquet", half)
    with pytest.raises(OSError, match="disk full"):
        write_records(path, records[:1], Record)
    assert read_records(path, Record) == records
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("version", [0, 99])
def test_an_unknown_schema_version_is_refused(tmp_path: Path, records: list[Record], version: int) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)
    table = pq.read_table(path)
    column = pa.array([version] * len(records), pa.int64())
    pq.write_table(table.set_column(0, "schema_version", column).replace_schema_metadata(None), path)
    with pytest.raises(RecordSchemaError, match=rf"r\.parquet.*schema_version {version}"):
        read_records(path, Record)


def test_a_missing_column_is_refused(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)
    for column in ("provenance", "schema_version", "task"):
        less = pq.read_table(path).drop_columns([column]).replace_schema_metadata(None)
        pq.write_table(less, tmp_path / "less.parquet")
        with pytest.raises(RecordSchemaError, match=column):
            read_records(tmp_path / "less.parquet", Record)


def test_something_else_than_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    path.write_text("no parquet")
    with pytest.raises(RecordSchemaError, match=r"r\.parquet"):
        read_records(path, Record)


def test_settings_are_stamped(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records, Record, "f", {"dtype": "float32"})
    assert stamped_settings(path) == {"dtype": "float32"} and read_records(path, Record, "f") == records
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)  # of an earlier version
    assert stamped_settings(path) is None and read_records(path, Record) == records


def test_no_damage_to_a_file_is_read_as_other_records(tmp_path: Path, records: list[Record], seed: int) -> None:
    """Flipped bits over the whole file and edits by other programs: the same records or one line, nothing else."""
    path = tmp_path / "r.parquet"
    write_records(path, records, Record, "f", {"dtype": "float32"})
    whole, table = path.read_bytes(), pq.read_table(path)
    generator = random.Random(seed)
    damaged = []
    for at in generator.sample(range(len(whole)), 60):
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << generator.randrange(8)]) + whole[at + 1 :])
    damaged += [whole[:cut] for cut in (0, 3, len(whole) // 2, len(whole) - 1)]
    scores = pa.array([0.75, *table["score"].to_pylist()[1:]], pa.float64())
    stamps = table.schema.metadata
    edits = [
        table.set_column(table.schema.names.index("score"), "score", scores),
        table.slice(1),
        pa.concat_tables([table, table.slice(0, 1)]),
        table.replace_schema_metadata(stamps | {b"fingerprint": b"other"}),
        table.replace_schema_metadata(stamps | {b"settings": b"{}"}),
    ]
    refused = 0
    for content in (*damaged, *edits):
        path.write_bytes(content) if isinstance(content, bytes) else pq.write_table(content, path)
        try:
            assert read_records(path, Record) == records
        except RecordSchemaError as error:
            refused += 1
            assert "r.parquet" in str(error) and "\n" not in str(error)
    assert refused >= 30  # the others hit bytes that hold no record
    for content in edits:
        pq.write_table(content, path)
        with pytest.raises(RecordSchemaError, match=r"do not match their checksum.*rm "):
            read_records(path, Record)


def test_a_full_disk_gives_one_line_with_path_and_bytes(
    tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)

    def full(table: pa.Table, where: Path) -> None:
        where.write_bytes(b"PAR1 half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "_write_parquet", full)
    with pytest.raises(
        StorageError, match=r"r\.parquet could not be written: No space left.*; [\d,]+ bytes are needed"
    ):
        write_records(path, records[:1], Record)
    assert read_records(path, Record) == records and list(tmp_path.iterdir()) == [path]
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"t\.csv could not be written: (Not a directory|File exists)"):
        storage.write_table(tmp_path / "file" / "t.csv", pd.DataFrame({"a": [1]}))
