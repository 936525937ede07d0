"""Records in parquet and tables beside them: each file written whole or not at all, read back under a known schema.

While a job fills its cells, a ``Store`` keeps each batch of records on disk, so that a killed job resumes there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from types import NoneType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, get_args, get_origin

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from longdecode.engine.disk import FileLock, writing
from longdecode.evals.records import BaseRecord, Fingerprint, Key, Provenance, R, RecordSchemaError, Stored, load_record

FINAL_STATUSES = frozenset({"ok", "unsupported"})
"""Statuses that a resumed job keeps; the others may end better the next time."""
_SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
_AS_JSON, _CHECKSUM = ("params", "launch", "provenance"), b"checksum"
_ANSWER = ("variant", "label", "task", "context", "budget", "seed", "sample_index", "score", "output_text")
"""Columns of an answer; earlier records call the variant its label."""
DIGITS = 6
"""Significant digits of a fraction in a table."""


class HasKey(Protocol):
    """A cell: anything that says which records are its own."""

    @property
    def key(self) -> Key:
        """The ``key`` of the cell's records."""


C = TypeVar("C", bound=HasKey)


class Store(Generic[C, R]):
    """Records of one output while its job runs: those known that still hold, and those added; a context manager.

    ``add`` writes a batch to a journal and syncs it before it returns: a kill or a power cut loses the batch in
    progress at most. ``finish`` writes the parquet file and removes the journal. A journal's line carries its checksum;
    damaged lines are dropped, which leaves their records to be computed again. A copy of the file stays beside the
    journal until the tables are made: Snakemake removes the file, or puts back an older one, if a job fails after all.

    A cell ends with all its samples or with one record of a status, never with a mixture. A sample that could not be
    scored in time counts as a sample: scoring it again would take as long again.

    Args:
        output: the parquet file.
        kind: ``Record`` or ``SpeedRecord``.
        cells: all cells, in the order of the final table; known records of other cells are left out.
        fingerprint: of a cell today; known records with another one are left out, and all where it is ``None``.
        samples: number of records that complete a cell.
    """

    def __init__(
        self, output: Path, kind: type[R], cells: Sequence[C], fingerprint: Callable[[C], Fingerprint | None], *,
        samples: Callable[[C], int] = lambda cell: 1,
    ):  # fmt: skip
        self.output, self.kind, self.cells = output, kind, tuple(cells)
        self._fingerprint, self._samples = fingerprint, samples
        self._done: dict[Key, dict[int, R]] = {cell.key: {} for cell in cells}
        self._journal = journal_path(output)
        self._lock = FileLock(self._journal.with_name(self._journal.name + ".lock"))
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        """Lock the output and take up what is known.

        Raises:
            LockHeldError: another process fills it; the message names the process.
            RecordSchemaError: the parquet file is damaged.
            StorageError: the journal cannot be written.
        """
        with writing(self._journal):
            self._journal.parent.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        try:
            files = filter(Path.exists, (kept_path(self.output), self.output))
            known = [record for path in files for record in read_records(path, self.kind)]
            today = {cell.key: self._fingerprint(cell) for cell in self.cells}
            for record in (*known, *self._read_journal()):
                held = today.get(record.key)
                lasting = record.index >= 0 or record.status in FINAL_STATUSES
                if lasting and held is not None and record.provenance.fingerprint == held:
                    self._done[record.key][record.index] = record
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        self._lock.release()

    def missing(self, cell: C, indices: Iterable[int]) -> frozenset[int]:
        """Return the sample numbers among ``indices`` that a cell still lacks; none once a status has closed it."""
        done = self._done[cell.key]
        return frozenset() if -1 in done else frozenset(indices) - done.keys()

    def open(self, cells: Iterable[C]) -> list[C]:
        """Return those of the cells that lack a record."""
        return [cell for cell in cells if self.missing(cell, range(self._samples(cell)))]

    def of(self, cell: C) -> list[R]:
        """Return the records of a cell: the one that closed it, or its samples by number."""
        done = self._done[cell.key]
        return [done[-1]] if -1 in done else [record for _, record in sorted(done.items())]

    def add(self, *records: R) -> None:
        """Put a batch of records on disk and count it.

        Raises:
            StorageError: the disk refuses it; what was added before is whole.
        """
        if not records:
            return
        text = "[" + ",".join(record.model_dump_json() for record in records) + "]"
        self._append(f"{_digest(text.encode())} {text}\n".encode())
        for record in records:
            self._done[record.key][record.index] = record

    def finish(self) -> None:
        """Write all records in the order of the cells, with a copy, and remove the journal."""
        write_records(self.output, [record for cell in self.cells for record in self.of(cell)], self.kind)
        with replacing(kept_path(self.output)) as temporary:
            shutil.copyfile(self.output, temporary)
        self._journal.unlink(missing_ok=True)

    def _read_journal(self) -> list[R]:
        """Read whole batches; the file is rewritten without the others, which a new line must not be joined to."""
        with writing(self._journal):
            raw = self._journal.read_bytes() if self._journal.exists() else b""
        whole = [line for line in raw.split(b"\n") if _digest(line[17:]) == line[:16].decode("latin-1")]
        if (kept := b"".join(line + b"\n" for line in whole)) != raw:
            with replacing(self._journal, len(kept)) as temporary:
                temporary.write_bytes(kept)
        records = list[R]()
        for line in whole:
            with suppress(RecordSchemaError):  # of another version: computed again
                records += [load_record(fields, str(self._journal), self.kind) for fields in json.loads(line[17:])]
        return records

    def _append(self, line: bytes) -> None:
        with writing(self._journal, len(line)):
            self._file = self._file or self._journal.open("ab", buffering=0)
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())


def results_root(output: Path) -> Path:
    """Return the folder of a run's results, given the file of a job; the file's own folder where it lies elsewhere."""
    room = next((parent for parent in output.parents if parent.name in ("records", "speed", "generation")), None)
    return room.parent if room else output.parent


def journal_path(output: Path) -> Path:
    """Return the journal of a job: ``records/m/v/s.parquet`` has ``journal/records/m/v/s.jsonl``."""
    root = results_root(output)
    return root / "journal" / output.relative_to(root).with_suffix(".jsonl")


def kept_path(output: Path) -> Path:
    """Return the copy of a job's records that no failing job takes away."""
    return journal_path(output).with_suffix(".parquet")


def write_records(path: Path, records: Iterable[R], kind: type[R]) -> None:
    """Write records to ``path`` as zstd parquet, with checksums of the rows and of each page.

    Column statistics and Arrow's copy of the schema are left out: files of records are small and read whole.

    Raises:
        StorageError: the disk refuses the file; the old one is still there.
    """
    rows = [record.model_dump() for record in records]
    rows = [row | {name: json.dumps(row[name], sort_keys=True) for name in _AS_JSON if name in row} for row in rows]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(kind))
    options = {"compression": "zstd", "compression_level": 19, "write_statistics": False, "store_schema": False}
    with (
        replacing(path, table.nbytes) as temporary,
        pq.ParquetWriter(temporary, table.schema, write_page_checksum=True, **options) as writer,
    ):
        writer.write_table(table)
        writer.add_key_value_metadata({_CHECKSUM: _rows_digest(table)})


def read_records(path: Path, kind: type[R]) -> list[R]:
    """Read every record of one parquet file.

    Raises:
        RecordSchemaError: the file is not parquet, does not match its checksum, or holds a record of another schema.
    """
    remedy = f"remove it (`rm {path}`) and run again"
    try:
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
        intact = (table.schema.metadata or {}).get(_CHECKSUM) in (None, _rows_digest(table))
        rows = [_fields(row) for row in table.to_pylist()]
    except FileNotFoundError:
        raise RecordSchemaError(f"{path}: no such file; run again to make it") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise RecordSchemaError(f"{path}: not a parquet file of records ({said}); {remedy}") from error
    if not intact:
        raise RecordSchemaError(f"{path}: the records do not match their checksum: damaged or edited; {remedy}")
    return [load_record(row, str(path), kind) for row in rows]


def read_folder(folder: Path, kind: type[R]) -> list[R]:
    """Read the records of every parquet file below ``folder``, in path order."""
    return [record for path in sorted(folder.rglob("*.parquet")) for record in read_records(path, kind)]


def read_answers(results: Path, suite: str) -> Iterator[pd.DataFrame]:
    """Yield, by model, a run's answers to a suite whose texts are stored, a row each with its score.

    Most records keep no text; a model without any yields nothing.
    """
    for model in sorted(path for path in (results / "records").glob("*") if path.is_dir()):
        found = []
        for path in sorted(model.glob(f"*/{suite}.parquet")) + sorted(model.glob(f"*/{suite}.[0-9]*.parquet")):
            names = [name for name in pq.read_schema(path).names if name in _ANSWER]
            table = pq.read_table(path, columns=names, filters=[("output_text", "!=", "")]).to_pandas()
            found.append(table.rename(columns={"label": "variant"}).dropna(subset=["output_text", "score"]))
        if any(map(len, found)):
            yield pd.concat(found)


@functools.cache
def arrow_schema(kind: type[BaseRecord]) -> pa.Schema:
    """Derive the parquet columns from a record's fields; dictionaries of no fixed type are stored as JSON."""
    fields = kind.model_fields.items()
    return pa.schema([(name, pa.string() if name in _AS_JSON else _arrow(field.annotation)) for name, field in fields])


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


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all; raises as ``replacing``."""
    with replacing(path, len(text)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame as zstd parquet where the name says so, else as CSV.

    Fractions have ``DIGITS`` digits in CSV and are float32, which has seven, in parquet.
    """
    with replacing(path, int(frame.memory_usage(deep=True).sum())) as temporary:
        fractions = [name for name in frame.columns if pd.api.types.is_float_dtype(frame[name])]
        if path.suffix == ".parquet":
            frame.astype(dict.fromkeys(fractions, "float32")).to_parquet(temporary, index=False, compression="zstd")
        else:
            frame.to_csv(temporary, index=False, float_format=_written, lineterminator="\n")


def read_frame(path: Path) -> pd.DataFrame:
    """Read a parquet file by ``write_table``, fractions in float64."""
    frame = pd.read_parquet(path)
    return frame.astype({name: "float64" for name in frame.columns if pd.api.types.is_float_dtype(frame[name])})


def _written(value: Any) -> str:
    """Write ``DIGITS`` significant digits, and all digits before the point."""
    return f"{value:.{max(DIGITS, len(f'{abs(value):.0f}'))}g}"


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _rows_digest(table: pa.Table) -> bytes:
    """Hash rows, and what else the file says of them: files of earlier versions carry settings."""
    digest = hashlib.sha256()
    for name, value in sorted((table.schema.metadata or {}).items()):
        if name != _CHECKSUM:
            digest.update(name + b"\0" + value + b"\n")
    for row in table.to_pylist():
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest().encode()


def _arrow(annotation: Any) -> pa.DataType:
    origin, arguments = get_origin(annotation), [part for part in get_args(annotation) if part is not NoneType]
    if origin is Literal:
        return pa.string()
    if origin is dict:
        return pa.map_(_arrow(arguments[0]), _arrow(arguments[1]))
    if origin in (list, tuple):
        return pa.list_(_arrow(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, Stored):
        return pa.struct([(name, _arrow(field.annotation)) for name, field in annotation.model_fields.items()])
    return _arrow(arguments[0]) if arguments else _SCALARS[annotation]


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    decoded = {name: json.loads(row[name]) for name in _AS_JSON[:2] if name in row}
    return row | decoded | {"provenance": _provenance(row["provenance"]), "measures": dict(row["measures"])}


@functools.lru_cache(maxsize=4096)
def _provenance(text: str) -> Provenance:
    """Parse a stored provenance; thousands of records share one."""
    return Provenance.model_validate_json(text)
