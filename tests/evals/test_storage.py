"""Parquet: records come back equal, half-written files never appear, unknown schemas are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longdecode.evals import storage
from longdecode.evals.migrations import RecordSchemaError
from longdecode.evals.records import SCHEMA_VERSION, Record
from longdecode.evals.storage import RECORD_SCHEMA, read_folder, read_records, write_records

Maker = Callable[..., Record]


@pytest.fixture
def records(make_record: Maker) -> list[Record]:
    return [
        make_record(sample_index=0, score=0.25, parts=[0.0, 1.0, 1 / 3], output_ids=[1, 255], output_text="\xff\n"),
        make_record(sample_index=1, params={"pages": 3, "nested": {"a": [1, None]}}, budget="0.1", budget_tokens=205),
        make_record(sample_index=-1, status="oom", reason="too large", parts=None),
        make_record(sample_index=2, parts=[], output_ids=[]),
    ]


def test_records_come_back_as_they_were(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "a" / "b.parquet"
    write_records(path, records)
    assert read_records(path) == records
    write_records(path, [])
    assert read_records(path) == []


def test_the_columns_are_the_records_fields() -> None:
    assert RECORD_SCHEMA.names == list(Record.model_fields)


def test_a_folder_is_read_in_path_order(tmp_path: Path, records: list[Record]) -> None:
    write_records(tmp_path / "z.parquet", records[:1])
    write_records(tmp_path / "a" / "y.parquet", records[1:])
    assert read_folder(tmp_path) == [*records[1:], *records[:1]]


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records)

    def half(table: pa.Table, where: Path, **settings: str) -> None:
        where.write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr(storage.pq, "write_table", half)
    with pytest.raises(OSError, match="disk full"):
        write_records(path, records[:1])
    assert read_records(path) == records
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_an_unknown_schema_version_is_refused(tmp_path: Path, records: list[Record], version: int) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records)
    table = pq.read_table(path)
    column = pa.array([version] * len(records), pa.int64())
    pq.write_table(table.set_column(0, "schema_version", column), path)
    with pytest.raises(RecordSchemaError, match=rf"r\.parquet.*schema_version {version}"):
        read_records(path)


def test_records_of_version_1_are_read_as_tasks_that_wait_for_no_end(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records)
    table = pq.read_table(path)
    column = pa.array([1] * len(records), pa.int64())
    older = table.set_column(0, "schema_version", column).drop_columns(["truncated"])
    pq.write_table(older, path)
    found = read_records(path)
    assert found == [record.model_copy(update={"truncated": None}) for record in records]
    assert {record.schema_version for record in found} == {SCHEMA_VERSION}


def test_a_missing_column_is_refused(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records)
    for column in ("provenance", "schema_version", "task"):
        pq.write_table(pq.read_table(path).drop_columns([column]), tmp_path / "less.parquet")
        with pytest.raises(RecordSchemaError, match=column):
            read_records(tmp_path / "less.parquet")


def test_something_else_than_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    path.write_text("no parquet")
    with pytest.raises(RecordSchemaError, match=r"r\.parquet"):
        read_records(path)
