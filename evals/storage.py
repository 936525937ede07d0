"""Records in parquet and tables beside them: each file written whole or not at all, read back under a known schema."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from longdecode.evals.migrations import RecordSchemaError, load_record
from longdecode.evals.records import BaseRecord, Provenance, SpeedSample

R = TypeVar("R", bound=BaseRecord)
_FINGERPRINT = b"fingerprint"
_SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
_AS_JSON = ("params", "launch", "provenance")


def write_records(path: Path, records: Iterable[R], kind: type[R], fingerprint: str | None = None) -> None:
    """Write records to ``path``.

    Args:
        kind: ``Record`` or ``SpeedRecord``.
        fingerprint: of the job, kept with the file so that the job can take its records up again.
    """
    rows = [_row(record) for record in records]
    schema = arrow_schema(kind).with_metadata({_FINGERPRINT: fingerprint} if fingerprint else None)
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, compression="zstd", compression_level=19)


def read_records(path: Path, kind: type[R], fingerprint: str | None = None) -> list[R]:
    """Read every record of one parquet file.

    Args:
        fingerprint: where given, a file that is missing or was written under another one counts as empty.

    Raises:
        RecordSchemaError: the file is not parquet, has no schema version, or one that cannot be migrated.
    """
    if fingerprint is not None and not path.exists():
        return []
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise RecordSchemaError(f"{path}: not a parquet file of records: {error}") from error
    if fingerprint is not None and (table.schema.metadata or {}).get(_FINGERPRINT) != fingerprint.encode():
        return []
    return [load_record(_fields(row, path), str(path), kind) for row in table.to_pylist()]


def read_folder(folder: Path, kind: type[R]) -> list[R]:
    """Read the records of every parquet file below ``folder``, in path order."""
    return [record for path in sorted(folder.rglob("*.parquet")) for record in read_records(path, kind)]


@functools.cache
def arrow_schema(kind: type[BaseRecord]) -> pa.Schema:
    """Derive the parquet columns from a record's fields; dictionaries of no fixed type are stored as JSON."""
    return pa.schema(
        [
            (name, pa.string() if name in _AS_JSON else _arrow(field.annotation))
            for name, field in kind.model_fields.items()
        ]
    )


def journal_path(output: Path) -> Path:
    """Return the journal of a job: ``records`` or ``speed`` in the path of its output replaced by ``journal``.

    ``records/m/l/s.parquet`` has ``journal/m/l/s.jsonl``, ``speed/j.parquet`` has ``journal/speed/j.jsonl``; an output
    elsewhere has its journal beside it.
    """
    parts = list(output.with_suffix(".jsonl").parts)
    if output.parent.name == "speed":
        parts[-2:-1] = ["journal", "speed"]
    elif "records" in parts:
        parts[len(parts) - 1 - parts[::-1].index("records")] = "journal"
    return Path(*parts)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file that takes the place of ``path`` when the block ends well, and is removed otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame as CSV, or as zstd parquet where the name says so."""
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            frame.to_parquet(temporary, index=False, compression="zstd")
        else:
            frame.to_csv(temporary, index=False, float_format="%.9g", lineterminator="\n")


def _arrow(annotation: Any) -> pa.DataType:
    origin, arguments = get_origin(annotation), [part for part in get_args(annotation) if part is not NoneType]
    if origin is Literal:
        return pa.string()
    if origin is dict:
        return pa.map_(_arrow(arguments[0]), _arrow(arguments[1]))
    if origin in (list, tuple):
        return pa.list_(_arrow(arguments[0]))
    if annotation is SpeedSample:
        return pa.struct([(name, _arrow(field.annotation)) for name, field in SpeedSample.model_fields.items()])
    return _arrow(arguments[0]) if arguments else _SCALARS[annotation]


def _row(record: BaseRecord) -> dict[str, Any]:
    row = record.model_dump()
    return row | {name: json.dumps(row[name], sort_keys=True) for name in _AS_JSON if name in row}


def _fields(row: dict[str, Any], path: Path) -> dict[str, Any]:
    try:
        decoded = {name: json.loads(row[name]) for name in _AS_JSON[:2] if name in row}
        fields = row | decoded | {"provenance": _provenance(row["provenance"])}
    except (KeyError, TypeError, ValueError) as error:
        raise RecordSchemaError(f"{path}: a column of {', '.join(_AS_JSON)} is missing or not JSON") from error
    return fields | {"measures": dict(row["measures"])} if "measures" in row else fields


@functools.lru_cache(maxsize=4096)
def _provenance(text: str) -> Provenance:
    """Parse a stored provenance; thousands of records share one."""
    return Provenance.model_validate_json(text)
