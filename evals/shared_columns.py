"""Columns of records kept once for a whole run: thousands of samples share a prompt's hash and an answer's tokens.

A packed file of records holds, in place of such a value, its number in ``shared.parquet`` beside the folder of records.
That file has one row; each of its columns is the list of the distinct values, which only ever grows.

Columns without fractions are no columns of a packed file, because hundreds of files have nearly the same: they stand in
its *frame*, a JSON text with its settings, also kept in ``shared.parquet``. So do a column that has one value in all
rows and the names of measures. Earlier versions kept every other column, and constants in the stamp ``constant``.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NAME = "shared.parquet"
STAMP, FRAME = b"shared", b"frame"
_CONSTANT, _SETTINGS = b"constant", b"settings"
_FRAMES = "frames"
COLUMNS = {
    "prompt_sha256": pa.string(),
    "output_ids": pa.list_(pa.int64()),
    "output_text": pa.string(),
    "provenance": pa.string(),
}
_KEPT = COLUMNS | {_FRAMES: pa.string()}
_NUMBER = pa.int32()
_KEYED = "measures"
_SMALLEST = "brotli"
_SPLIT, _PLAIN = ("output_ids",), ("parts", "score", _KEYED, _FRAMES)


class SharedValues:
    """Distinct values of the shared columns, numbered in the order in which they were met."""

    def __init__(self, path: Path | None):
        """Take up the values of ``path`` where it exists."""
        known = _columns(path) if path is not None and path.exists() else {}
        found = {name: column.to_pylist() for name, column in known.items()}
        self._numbers = {name: {_key(v): i for i, v in enumerate(found.get(name, []))} for name in _KEPT}

    def packed(self, table: pa.Table, shared: str) -> pa.Table:
        """Return the table with numbers in place of the values of the shared columns, and without what its frame has.

        Args:
            shared: path of ``shared.parquet`` from the file's folder.
        """
        for name in [name for name in COLUMNS if name in table.column_names]:
            known = self._numbers[name]
            keys = (None if value is None else _key(value) for value in table[name].to_pylist())
            numbers = [None if key is None else known.setdefault(key, len(known)) for key in keys]
            place = table.column_names.index(name)
            table = table.set_column(place, pa.field(name, _NUMBER), pa.array(numbers, _NUMBER))
        same = {name: [str(table.schema.field(name).type), value] for name, value in _constants(table)}
        rows = {
            field.name: [str(field.type), table[field.name].to_pylist()]
            for field in table.schema
            if field.name not in same and not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type)
        }
        stamps = dict(table.schema.metadata or {})
        table, named = _unkeyed(table)
        frame = {"same": same, "rows": rows, "keys": named, "settings": stamps.pop(_SETTINGS, b"").decode()}
        frames = self._numbers[_FRAMES]
        number = frames.setdefault(json.dumps(frame, separators=(",", ":")), len(frames))
        stamps |= {STAMP: shared.encode(), FRAME: str(number).encode()}
        return table.drop_columns([*same, *rows]).replace_schema_metadata(stamps)

    def table(self) -> pa.Table:
        """Return the one row of ``shared.parquet``."""
        fields = [(name, pa.list_(kind)) for name, kind in _KEPT.items()]
        return pa.Table.from_pylist([{name: list(self._numbers[name]) for name in _KEPT}], schema=pa.schema(fields))


def expanded(table: pa.Table, path: Path) -> pa.Table:
    """Return a table of records as it was written, given as it lies in ``path``; one that is not packed as it is.

    Raises:
        pyarrow.ArrowException: the file with the shared values is missing, damaged, or has fewer than referred to.
    """
    stamps = table.schema.metadata or {}
    if STAMP not in stamps:
        return table
    values, frame = _values(stamps, path), _frame(stamps, path)
    for name, (kind, value) in frame["same"].items():
        table = table.append_column(name, pa.array([value] * table.num_rows, pa.type_for_alias(kind)))
    for name, (kind, rows) in frame["rows"].items():
        table = table.append_column(name, pa.array(rows, pa.type_for_alias(kind)))
    table = _keyed(table, *frame["keys"]) if FRAME in stamps else table
    for place, name in enumerate(table.column_names):
        if name in values and table.schema.field(name).type == _NUMBER:
            whole = pc.take(values[name], table[name].combine_chunks())
            table = table.set_column(place, pa.field(name, COLUMNS[name]), whole)
    return table.replace_schema_metadata(expanded_stamps(stamps, path) or None)


def expanded_stamps(stamps: Mapping[bytes, bytes], path: Path) -> dict[bytes, bytes]:
    """Return the stamps that a file of records was written with, given those it has as it lies in ``path``.

    Raises:
        pyarrow.ArrowException: as ``expanded``.
    """
    kept = {name: text for name, text in stamps.items() if name not in (STAMP, FRAME, _CONSTANT)}
    settings = _frame(stamps, path)["settings"] if FRAME in stamps else ""
    return kept | ({_SETTINGS: settings.encode()} if settings else {})


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table as small as parquet allows; tokens are split by byte before compression.

    Column statistics and Arrow's own copy of the schema are left out, because files of records are always read whole.
    """
    leaves = {leaf: kind for field in table.schema for leaf, kind in _leaves(field.name, field.type)}
    coded = {leaf: "BYTE_STREAM_SPLIT" for leaf in leaves if leaf.split(".")[0] in _SPLIT}
    coded |= {leaf: "PLAIN" for leaf in leaves if leaf.split(".")[0] in _PLAIN and not leaf.endswith(".key")}
    coded |= {leaf: "DELTA_BINARY_PACKED" for leaf, kind in leaves.items() if kind == pa.int32()}
    _write(table, path, coded, "zstd", 19)


def write_smallest(table: pa.Table, path: Path) -> None:
    """Write a table as `write_parquet`, trying the encodings of each column in turn, which takes a while."""
    chosen: dict[str, str] = {}
    for field in table.schema:
        column, coded = table.select([field.name]), dict[str, str]()
        for leaf, kind in _leaves(field.name, field.type):
            sizes = {encoding: _bytes(column, {**coded, leaf: encoding}) for encoding in _encodings(kind)}
            coded[leaf] = min(sizes, key=lambda encoding: sizes[encoding])
        chosen |= coded
    _write(table, path, chosen)


def _encodings(kind: pa.DataType) -> list[str]:
    """Return the encodings that fit values of a kind; an empty name stands for a dictionary."""
    if pa.types.is_boolean(kind):
        return ["PLAIN"]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ["", "PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
    return ["", "PLAIN", "BYTE_STREAM_SPLIT", *(["DELTA_BINARY_PACKED"] if pa.types.is_integer(kind) else [])]


def _bytes(table: pa.Table, coded: Mapping[str, str]) -> int:
    buffer = pa.BufferOutputStream()
    _write(table, buffer, coded)
    size: int = buffer.getvalue().size
    return size


def _write(
    table: pa.Table, where: Any, coded: Mapping[str, str], compression: str = _SMALLEST, level: int = 11
) -> None:
    """Write a table under an encoding for each leaf; those without one, or an empty one, are coded by dictionary."""
    named = {leaf: encoding for leaf, encoding in coded.items() if encoding}
    leaves = [leaf for field in table.schema for leaf, _ in _leaves(field.name, field.type)]
    with pq.ParquetWriter(
        where, table.schema, compression=compression, compression_level=level, write_page_checksum=True,
        write_statistics=False, store_schema=False, data_page_size=1 << 26, column_encoding=named,
        use_dictionary=[leaf for leaf in leaves if leaf not in named],
    ) as writer:  # fmt: skip
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata or {})


def is_smallest(path: Path) -> bool:
    """Tell a file by `write_smallest`, or one that has nothing to compress."""
    about = pq.read_metadata(path)
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    return all(g.column(j).compression == _SMALLEST.upper() for g in groups for j in range(about.num_columns))


def _values(stamps: Mapping[bytes, bytes], path: Path) -> dict[str, pa.Array]:
    """Return the values that a packed file shares with others."""
    shared = (path.parent / stamps[STAMP].decode()).resolve()
    if not shared.is_file():
        raise pa.ArrowInvalid(f"its prompt hashes and answers lie in {shared}, which is missing")
    return _cached(shared, shared.stat().st_mtime_ns, shared.stat().st_size)


def _frame(stamps: Mapping[bytes, bytes], path: Path) -> dict[str, Any]:
    """Return the frame of a packed file; of an earlier version, its constants."""
    if FRAME not in stamps:
        return {"same": json.loads(stamps.get(_CONSTANT, b"{}")), "rows": {}}
    frames = _values(stamps, path).get(_FRAMES, pa.array([], pa.string()))
    frame: dict[str, Any] = json.loads(pc.take(frames, pa.array([int(stamps[FRAME])]))[0].as_py())
    return frame


def _unkeyed(table: pa.Table) -> tuple[pa.Table, tuple[list[list[str]], list[int]]]:
    """Return the table with measures as lists of values, the distinct lists of their names, and each row's of them."""
    column = table[_KEYED].combine_chunks()
    names = [tuple(name for name, _ in row) for row in column.to_pylist()]
    distinct = list(dict.fromkeys(names))
    number = {name: place for place, name in enumerate(distinct)}
    values = pa.ListArray.from_arrays(column.offsets, column.items)
    place = table.column_names.index(_KEYED)
    return table.set_column(place, _KEYED, values), (
        [list(name) for name in distinct],
        [number[name] for name in names],
    )


def _keyed(table: pa.Table, distinct: list[list[str]], numbers: list[int]) -> pa.Table:
    """Undo ``_unkeyed``."""
    column = table[_KEYED].combine_chunks()
    names = pa.array([name for number in numbers for name in distinct[number]], pa.string())
    whole = pa.MapArray.from_arrays(column.offsets, names, column.values)
    return table.set_column(table.column_names.index(_KEYED), _KEYED, whole)


def _leaves(path: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    if pa.types.is_map(kind):
        return [(f"{path}.key_value.key", kind.key_type), (f"{path}.key_value.value", kind.item_type)]
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(f"{path}.{field.name}", field.type)]
    return [(path, kind)]


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _constants(table: pa.Table) -> list[tuple[str, Any]]:
    """Return the columns that have one value in all rows; never all columns, which would lose the number of rows."""
    found = []
    for name in table.column_names if table.num_rows > 1 else ():
        nested = pa.types.is_nested(table.schema.field(name).type)
        values = [] if nested else table[name].unique().to_pylist()
        if len(values) == 1 and not (isinstance(values[0], float) and not math.isfinite(values[0])):
            found.append((name, values[0]))
    return found[: table.num_columns - 1]


def _columns(path: Path) -> dict[str, pa.Array]:
    """Return the shared values; a file of an earlier version has fewer columns."""
    table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
    return {name: table[name].combine_chunks().flatten() for name in _KEPT if name in table.column_names}


@functools.lru_cache(maxsize=4)
def _cached(path: Path, modified_ns: int, size_bytes: int) -> dict[str, pa.Array]:
    return _columns(path)
