"""Columns of records kept once for a whole run: thousands of samples share a prompt's hash and an answer's tokens.

A packed file of records holds, in place of such a value, its number in ``shared.parquet`` beside the folder of records.
That file has one row; each of its columns is the list of the distinct values, which only ever grows. A column that has
one value in all rows of a file is no column of it: it stands in the stamp ``constant``, with its type.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NAME = "shared.parquet"
STAMP, CONSTANT = b"shared", b"constant"
COLUMNS = {
    "prompt_sha256": pa.string(),
    "output_ids": pa.list_(pa.int64()),
    "output_text": pa.string(),
    "provenance": pa.string(),
}
_NUMBER = pa.int32()
_SPLIT = ("output_ids", "parts", "score")


class SharedValues:
    """Distinct values of the shared columns, numbered in the order in which they were met."""

    def __init__(self, path: Path | None):
        """Take up the values of ``path`` where it exists."""
        known = _columns(path) if path is not None and path.exists() else {}
        found = {name: column.to_pylist() for name, column in known.items()}
        self._numbers = {name: {_key(v): i for i, v in enumerate(found.get(name, []))} for name in COLUMNS}

    def packed(self, table: pa.Table, shared: str) -> pa.Table:
        """Return the table with numbers in place of the values of the shared columns, and without constant ones.

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
        stamps = {STAMP: shared.encode(), CONSTANT: json.dumps(same, separators=(",", ":")).encode()}
        return table.drop_columns(list(same)).replace_schema_metadata((table.schema.metadata or {}) | stamps)

    def table(self) -> pa.Table:
        """Return the one row of ``shared.parquet``."""
        fields = [(name, pa.list_(kind)) for name, kind in COLUMNS.items()]
        return pa.Table.from_pylist([{name: list(self._numbers[name]) for name in COLUMNS}], schema=pa.schema(fields))


def expanded(table: pa.Table, path: Path) -> pa.Table:
    """Return a table of records as it was written, given as it lies in ``path``; one that is not packed as it is.

    Raises:
        pyarrow.ArrowException: the file with the shared values is missing, damaged, or has fewer than referred to.
    """
    stamps = table.schema.metadata or {}
    if STAMP not in stamps:
        return table
    shared = (path.parent / stamps[STAMP].decode()).resolve()
    if not shared.is_file():
        raise pa.ArrowInvalid(f"its prompt hashes and answers lie in {shared}, which is missing")
    for name, (kind, value) in json.loads(stamps.get(CONSTANT, b"{}")).items():
        table = table.append_column(name, pa.array([value] * table.num_rows, pa.type_for_alias(kind)))
    values = _cached(shared, shared.stat().st_mtime_ns, shared.stat().st_size)
    for place, name in enumerate(table.column_names):
        if name in values and table.schema.field(name).type == _NUMBER:
            whole = pc.take(values[name], table[name].combine_chunks())
            table = table.set_column(place, pa.field(name, COLUMNS[name]), whole)
    kept = {name: text for name, text in stamps.items() if name not in (STAMP, CONSTANT)}
    return table.replace_schema_metadata(kept or None)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table as small as parquet allows; numbers that seldom repeat are split by byte before compression.

    Column statistics and Arrow's own copy of the schema are left out, because files of records are always read whole.
    """
    leaves = {leaf: kind for field in table.schema for leaf, kind in _leaves(field.name, field.type)}
    coded = {leaf: "BYTE_STREAM_SPLIT" for leaf in leaves if leaf.split(".")[0] in _SPLIT}
    coded |= {leaf: "PLAIN" for leaf in leaves if leaf.startswith("measures.") and leaf.endswith(".value")}
    coded |= {leaf: "DELTA_BINARY_PACKED" for leaf, kind in leaves.items() if kind == pa.int32()}
    with pq.ParquetWriter(
        path, table.schema, compression="zstd", compression_level=19, write_page_checksum=True, write_statistics=False,
        store_schema=False, data_page_size=1 << 26, column_encoding=coded,
        use_dictionary=[leaf for leaf in leaves if leaf not in coded],
    ) as writer:  # fmt: skip
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata or {})


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
    return {name: table[name].combine_chunks().flatten() for name in COLUMNS if name in table.column_names}


@functools.lru_cache(maxsize=4)
def _cached(path: Path, modified_ns: int, size_bytes: int) -> dict[str, pa.Array]:
    return _columns(path)
