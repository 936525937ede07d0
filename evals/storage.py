"""Records in parquet: written whole or not at all, read back only under a schema this code knows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longdecode.evals.migrations import RecordSchemaError, load_record
from longdecode.evals.records import Record

_AS_JSON = ("params", "provenance")
_COLUMNS: dict[str, Any] = {
    "schema_version": pa.int64(),
    "profile": pa.string(),
    "model": pa.string(),
    "method": pa.string(),
    "label": pa.string(),
    "params": pa.string(),
    "suite": pa.string(),
    "task": pa.string(),
    "task_version": pa.int64(),
    "metric": pa.string(),
    "unit": pa.string(),
    "higher_is_better": pa.bool_(),
    "data_source": pa.string(),
    "budget": pa.string(),
    "budget_tokens": pa.int64(),
    "context": pa.int64(),
    "batch": pa.int64(),
    "seed": pa.int64(),
    "sample_index": pa.int64(),
    "status": pa.string(),
    "reason": pa.string(),
    "prompt_sha256": pa.string(),
    "output_ids": pa.list_(pa.int64()),
    "output_text": pa.string(),
    "score": pa.float64(),
    "parts": pa.list_(pa.float64()),
    "read_tokens_mean": pa.float64(),
    "read_tokens_sparse": pa.float64(),
    "kv_bytes_per_step": pa.float64(),
    "metadata_bytes_per_step": pa.float64(),
    "finish_reason": pa.string(),
    "truncated": pa.bool_(),
    "prefill_ms": pa.float64(),
    "decode_ms": pa.float64(),
    "decode_steps": pa.int64(),
    "provenance": pa.string(),
}
RECORD_SCHEMA = pa.schema(list(_COLUMNS.items()))


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records to ``path`` through a temporary file and a rename, so that the file is whole or absent."""
    rows = [_row(record) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=RECORD_SCHEMA), temporary, compression="zstd")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_records(path: Path) -> list[Record]:
    """Read every record of one parquet file.

    Raises:
        RecordSchemaError: the file is not parquet, has no schema version, or one that cannot be migrated.
    """
    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise RecordSchemaError(f"{path}: not a parquet file of records: {error}") from error
    return [load_record(_fields(row, path), str(path)) for row in rows]


def read_folder(folder: Path) -> list[Record]:
    """Read the records of every parquet file below ``folder``, in path order."""
    return [record for path in sorted(folder.rglob("*.parquet")) for record in read_records(path)]


def _row(record: Record) -> dict[str, Any]:
    row = record.model_dump()
    for name in _AS_JSON:
        row[name] = json.dumps(row[name], sort_keys=True)
    return row


def _fields(row: dict[str, Any], path: Path) -> dict[str, Any]:
    fields = dict(row)
    for name in _AS_JSON:
        try:
            fields[name] = json.loads(fields[name])
        except (KeyError, TypeError, ValueError) as error:
            raise RecordSchemaError(f"{path}: column {name!r} is missing or not JSON") from error
    return fields
