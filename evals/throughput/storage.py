"""Speed records on disk: a JSONL journal while a job runs, a parquet file once it is done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from longdecode.evals.journal import BaseJournal
from longdecode.evals.migrations import RecordSchemaError
from longdecode.evals.throughput.records import SCHEMA_VERSION, SpeedRecord

_AS_JSON = ("params", "launch", "provenance")
_SAMPLE = pa.struct([("us", pa.float64()), ("reference_us", pa.float64()), ("disturbed", pa.string())])
_COLUMNS: dict[str, Any] = {
    "schema_version": pa.int64(),
    "profile": pa.string(),
    "bench": pa.string(),
    "model": pa.string(),
    "weights": pa.string(),
    "subject": pa.string(),
    "label": pa.string(),
    "params": pa.string(),
    "stage": pa.string(),
    "context": pa.int64(),
    "batch": pa.int64(),
    "budget": pa.string(),
    "budget_tokens": pa.int64(),
    "seed": pa.int64(),
    "status": pa.string(),
    "reason": pa.string(),
    "samples": pa.list_(_SAMPLE),
    "reference": pa.string(),
    "bytes_min": pa.int64(),
    "expected_bytes": pa.int64(),
    "peak_bytes": pa.int64(),
    "launch": pa.string(),
    "sm_clock_mhz": pa.list_(pa.int64()),
    "temperature_c": pa.int64(),
    "throttle": pa.string(),
    "provenance": pa.string(),
}
SPEED_SCHEMA = pa.schema(list(_COLUMNS.items()))


class SpeedJournal(BaseJournal[SpeedRecord]):
    """The journal of a throughput job: a killed job resumes at its next record."""

    schema_version = SCHEMA_VERSION

    def _read(self, fields: dict[str, Any], source: str) -> SpeedRecord:
        return load_speed_record(fields, source)


def load_speed_record(fields: Mapping[str, Any], source: str) -> SpeedRecord:
    """Read one stored record.

    Raises:
        RecordSchemaError: another schema version, or the fields are not those of the schema.
    """
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordSchemaError(f"{source}: speed record of schema_version {version}; this code reads {SCHEMA_VERSION}")
    try:
        return SpeedRecord.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordSchemaError(f"{source}: field {where}: {first['msg']}") from error


def write_speed_records(path: Path, records: Iterable[SpeedRecord]) -> None:
    """Write records to ``path`` through a temporary file and a rename, so that the file is whole or absent."""
    rows = [_row(record) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=SPEED_SCHEMA), temporary, compression="zstd")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_speed_records(path: Path) -> list[SpeedRecord]:
    """Read every record of one parquet file.

    Raises:
        RecordSchemaError: the file is not parquet, or its records are not of this schema.
    """
    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise RecordSchemaError(f"{path}: not a parquet file of speed records: {error}") from error
    return [load_speed_record(_fields(row, path), str(path)) for row in rows]


def journal_path(output: Path) -> Path:
    """The journal of a job: ``journal/speed/<job>.jsonl`` for ``speed/<job>.parquet``, under the same folder.

    An output in a folder of another name has its journal beside it.
    """
    if output.parent.name == "speed":
        return output.parent.parent / "journal" / "speed" / output.with_suffix(".jsonl").name
    return output.with_suffix(".jsonl")


def _row(record: SpeedRecord) -> dict[str, Any]:
    row = record.model_dump()
    for name in _AS_JSON:
        row[name] = json.dumps(row[name], sort_keys=True)
    row["sm_clock_mhz"] = list(record.sm_clock_mhz) if record.sm_clock_mhz else None
    return row


def _fields(row: dict[str, Any], path: Path) -> dict[str, Any]:
    fields = dict(row)
    for name in _AS_JSON:
        try:
            fields[name] = json.loads(fields[name])
        except (KeyError, TypeError, ValueError) as error:
            raise RecordSchemaError(f"{path}: column {name!r} is missing or not JSON") from error
    return fields
