"""Parquet: records come back equal, half-written files never appear, unknown schemas are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longdecode.evals import storage
from longdecode.evals.migrations import RecordSchemaError
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.storage import arrow_schema, read_folder, read_records, write_records

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

    def half(table: pa.Table, where: Path, **settings: str) -> None:
        where.write_bytes(b"PAR1 half")
        raise OSError("disk full")

    monkeypatch.setattr(storage.pq, "write_table", half)
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
    pq.write_table(table.set_column(0, "schema_version", column), path)
    with pytest.raises(RecordSchemaError, match=rf"r\.parquet.*schema_version {version}"):
        read_records(path, Record)


def test_a_missing_column_is_refused(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "r.parquet"
    write_records(path, records, Record)
    for column in ("provenance", "schema_version", "task"):
        pq.write_table(pq.read_table(path).drop_columns([column]), tmp_path / "less.parquet")
        with pytest.raises(RecordSchemaError, match=column):
            read_records(tmp_path / "less.parquet", Record)


def test_something_else_than_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    path.write_text("no parquet")
    with pytest.raises(RecordSchemaError, match=r"r\.parquet"):
        read_records(path, Record)
