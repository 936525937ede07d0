"""Pack a finished run: what many samples share is kept once, in ``shared.parquet``, and every parquet file is small.

Run it on evidence that is to be published: ``python -m longdecode.evals.pack results/h200``. Packed records read back
equal, under the same names; a job that runs again writes its own file whole, and packing takes it up.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from longdecode.engine.errors import LongDecodeError
from longdecode.evals import manifest
from longdecode.evals.records import Record, RecordSchemaError
from longdecode.evals.shared_columns import FRAME, NAME, STAMP, SharedValues, is_smallest, write_smallest
from longdecode.evals.storage import read_records, read_table, replacing, stamped


def pack(root: Path) -> tuple[int, int]:
    """Pack every file below ``root/records`` that is not, or as an earlier version did; return bytes before and after.

    The other parquet files below ``root`` are only encoded anew where that makes them smaller.
    The shared values are written first, and a file takes its place only when it reads back equal, so that packing can
    stop at any point; where no file refers to the old ones, they go. No job may write records meanwhile.

    Args:
        root: the results folder of a run.

    Raises:
        ManifestError: a file is not as its job wrote it.
        RecordSchemaError: a file cannot be read, or does not read back equal.
    """
    shared = root / NAME
    files = sorted((root / "records").rglob("*.parquet"))
    others = sorted(set(root.rglob("*.parquet")) - set(files))
    manifest.require(root, [*files, *others])
    before = _size([*files, *others])
    stamps = {path: pq.read_schema(path).metadata or {} for path in files}
    values = SharedValues(shared if any(STAMP in found for found in stamps.values()) else None)
    packed = {}
    for path in files:
        if FRAME in stamps[path]:
            continue
        read_records(path, Record)
        whole = stamped(read_table(path))
        packed[path] = values.packed(whole, os.path.relpath(shared, path.parent))
    if packed:
        with replacing(shared) as temporary:
            write_smallest(values.table(), temporary)
        for path, table in packed.items():
            old = stamped(read_table(path))
            with replacing(path, table.nbytes) as temporary:
                write_smallest(table, temporary)
                new = read_table(temporary)
                if new.to_pylist() != old.to_pylist() or new.schema.metadata != old.schema.metadata:
                    raise RecordSchemaError(f"{path}: packed, it does not read back equal; it is left as it was")
        manifest.seal(root, [shared, *packed])
    _encode(root)
    return before, _size(root.rglob("*.parquet"))


def _encode(root: Path) -> None:
    """Write parquet files that are not in their smallest encoding anew, under the settings that the manifest names.

    A table that was made under another configuration than the folder's is left as it is.
    """
    config = root / "config.yaml"
    made_under = {"-": None} | ({manifest.sha256(config): config} if config.is_file() else {})
    for name, entry in manifest.read(root).items():
        path = root / name
        if path.suffix != ".parquet" or entry.settings not in made_under or is_smallest(path):
            continue
        old = pq.read_table(path, page_checksum_verification=True, partitioning=None)
        with replacing(path, old.nbytes) as temporary:
            write_smallest(old, temporary)
            new = pq.read_table(temporary, partitioning=None)
            stamps = [table.schema.metadata or {} for table in (new, old)]
            if repr(new.to_pylist()) != repr(old.to_pylist()) or stamps[0] != stamps[1]:
                raise RecordSchemaError(f"{path}: encoded anew, it does not read back equal; it is left as it was")
        manifest.seal(root, [path], made_under[entry.settings])


def _size(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.exists())


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; exit status 1 where a folder cannot be packed."""
    parser = argparse.ArgumentParser(description="Pack the records of finished runs.")
    parser.add_argument("folders", type=Path, nargs="+", help="results folders, such as results/h200")
    try:
        for folder in parser.parse_args(arguments).folders:
            before, after = pack(folder)
            print(f"{folder}: parquet {before / 1e6:.2f} MB, packed {after / 1e6:.2f} MB")
    except LongDecodeError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
