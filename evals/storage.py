"""Records in parquet and tables beside them: each file written whole or not at all, read back under a known schema."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from longdecode.engine.disk import writing
from longdecode.evals.hashing import code_hash
from longdecode.evals.records import BaseRecord, Provenance, RecordSchemaError, SpeedSample, load_record

R = TypeVar("R", bound=BaseRecord)
_FINGERPRINT, _SETTINGS, _DRAFTERS, _CHECKSUM = b"fingerprint", b"settings", b"drafters", b"checksum"
_STAMPS = (_FINGERPRINT, _SETTINGS, _DRAFTERS)
_SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
DIGITS = 6
"""Significant digits of a fraction in a table."""
_AS_JSON = ("params", "launch", "provenance")


def write_records(
    path: Path,
    records: Iterable[R],
    kind: type[R],
    fingerprint: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write records to ``path``, with a checksum over all of them, and the hash of the code of each method that drafts.

    A record's own code hash covers the method that writes; which method drafts for it is a parameter.

    Args:
        kind: ``Record`` or ``SpeedRecord``.
        fingerprint: of the job, kept with the file so that the job can take its records up again.
        settings: what the records were made under, kept with the file for ``stamped_settings``.

    Raises:
        StorageError: the disk refuses the file; the old one is still there.
    """
    records = list(records)
    table = pa.Table.from_pylist([_row(record) for record in records], schema=arrow_schema(kind))
    drafters = {drafter: code_hash((), [drafter]) for record in records if (drafter := record.params.get("drafter"))}
    stamps = {_FINGERPRINT: fingerprint.encode() if fingerprint else b""}
    for name, values in ((_SETTINGS, settings), (_DRAFTERS, drafters)):
        stamps[name] = json.dumps(values, sort_keys=True).encode() if values else b""
    kept = {name: value for name, value in stamps.items() if value}
    with replacing(path, table.nbytes) as temporary:
        _write_parquet(_stamped(table.replace_schema_metadata(kept)), temporary)


def read_records(path: Path, kind: type[R], fingerprint: str | None = None) -> list[R]:
    """Read every record of one parquet file.

    Args:
        fingerprint: where given, a file that is missing or was written under another one counts as empty.

    Raises:
        RecordSchemaError: the file is not parquet, does not match its checksum, or holds a record of another schema.
    """
    if fingerprint is not None and not path.exists():
        return []
    remedy = f"remove it (`rm {path}`) and run again: it is written anew from its journal, or computed again"
    try:
        table = read_table(path)
        rows, stamps = table.to_pylist(), table.schema.metadata or {}
        kept = {name: stamps[name] for name in _STAMPS if name in stamps}
        intact = _CHECKSUM not in stamps or stamps[_CHECKSUM] == _checksum(rows, kept)
    except FileNotFoundError:
        raise RecordSchemaError(f"{path}: no such file; run again to make it") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError) as error:
        raise RecordSchemaError(f"{path}: not a parquet file of records ({_first_line(error)}); {remedy}") from error
    if not intact:
        raise RecordSchemaError(f"{path}: the records do not match their checksum: damaged or edited; {remedy}")
    if fingerprint is not None and stamps.get(_FINGERPRINT) != fingerprint.encode():
        return []
    return [load_record(_fields(row, path), str(path), kind) for row in rows]


def read_table(path: Path) -> pa.Table:
    """Read the rows and stamps of a file of records.

    Raises:
        pyarrow.ArrowException: it is damaged.
    """
    return pq.read_table(path, page_checksum_verification=True, partitioning=None)


def _stamped(table: pa.Table) -> pa.Table:
    """Return the table with a checksum over its rows beside the fingerprint and settings that it has."""
    stamps = table.schema.metadata or {}
    kept = {name: stamps[name] for name in _STAMPS if name in stamps}
    return table.replace_schema_metadata(kept | {_CHECKSUM: _checksum(table.to_pylist(), kept)})


def stamped_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings that the records of a file were made under; ``None`` of a file that does not say.

    Raises:
        RecordSchemaError: the file is not parquet.
    """
    return _stamp(path, _SETTINGS)


def stamped_drafters(path: Path) -> dict[str, str]:
    """Return the code hash of each method that drafted for a file's records; raises as ``stamped_settings``."""
    return _stamp(path, _DRAFTERS) or {}


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
def replacing(path: Path, needed_bytes: int | None = None) -> Iterator[Path]:
    """Give a temporary file that takes the place of ``path`` when the block ends well, and is removed otherwise.

    Args:
        needed_bytes: about how large it will be, for the error's line.

    Raises:
        StorageError: the disk refuses the file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path, needed_bytes):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame as zstd parquet where the name says so, else as CSV.

    Fractions have ``DIGITS`` digits in CSV and are float32, which has seven, in parquet.
    """
    with replacing(path, int(frame.memory_usage(deep=True).sum())) as temporary:
        fractions = [name for name in frame.columns if pd.api.types.is_float_dtype(frame[name])]
        if path.suffix == ".parquet":
            frame.astype(dict.fromkeys(fractions, "float32")).to_parquet(temporary, index=False, compression="zstd")
        else:
            written = frame.assign(**{name: frame[name].map(_shortened) for name in fractions})
            written.to_csv(temporary, index=False, float_format="%.9g", lineterminator="\n")


def read_frame(path: Path) -> pd.DataFrame:
    """Read a parquet file by ``write_table``, fractions in float64."""
    frame = pd.read_parquet(path)
    return frame.astype({name: "float64" for name in frame.columns if pd.api.types.is_float_dtype(frame[name])})


def _shortened(value: float) -> float:
    """Round to ``DIGITS`` significant digits, whole numbers not at all."""
    if pd.isna(value) or value == 0 or not math.isfinite(value):
        return value
    return round(value, max(0, DIGITS - 1 - math.floor(math.log10(abs(value)))))


def _write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table and its stamps as zstd parquet with a checksum a page.

    Column statistics and Arrow's copy of the schema are left out: files of records are small and read whole.
    """
    options = {"compression": "zstd", "compression_level": 19, "write_statistics": False, "store_schema": False}
    with pq.ParquetWriter(path, table.schema, write_page_checksum=True, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata or {})


def _stamp(path: Path, name: bytes) -> dict[str, Any] | None:
    try:
        stamps = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RecordSchemaError(f"{path}: not a parquet file of records ({_first_line(error)})") from error
    return json.loads(stamps[name]) if name in stamps else None


def _checksum(rows: Iterable[Mapping[str, Any]], stamps: Mapping[bytes, bytes]) -> bytes:
    """Hash stored rows and the stamps of their file."""
    digest = hashlib.sha256()
    for name, value in sorted(stamps.items()):
        digest.update(name + b"\0" + value + b"\n")
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest().encode()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


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
