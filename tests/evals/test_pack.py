"""Packing: records read back equal from less, later records join, and nothing wrong is read where a file is missing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longdecode.evals import manifest
from longdecode.evals.pack import main, pack
from longdecode.evals.records import Record, RecordSchemaError
from longdecode.evals.shared_columns import is_smallest, write_parquet
from longdecode.evals.storage import read_folder, read_records, read_table, stamped_settings, write_records

Maker = Callable[..., Record]


def _write(root: Path, label: str, records: list[Record]) -> Path:
    path = root / "records" / "m" / label / "s.parquet"
    write_records(path, records, Record, f"job {label}", {"dtype": "float32"})
    manifest.seal(root, [path])
    return path


@pytest.fixture
def run(tmp_path: Path, make_record: Maker) -> tuple[Path, list[Record]]:
    prompts = [hashlib.sha256(f"{i}".encode()) for i in range(300)]
    records = [
        make_record(
            sample_index=i,
            prompt_sha256=prompt.hexdigest(),
            output_ids=list(prompt.digest())[: i % 33],
            parts=[i / 3],
            output_text=prompt.hexdigest()[: i % 33],
        )
        for i, prompt in enumerate([*prompts, *prompts])
    ]
    records += [make_record(sample_index=-1, status="oom", reason="too large", prompt_sha256=None, output_ids=None)]
    for number, label in enumerate("ab"):
        _write(tmp_path, label, records[300 * number : 300 * (number + 1) + number])
    return tmp_path, records


def test_packed_records_come_back_equal_from_less(run: tuple[Path, list[Record]]) -> None:
    root, records = run
    before, after = pack(root)
    assert after < 0.7 * before
    assert read_folder(root / "records", Record) == records
    path = root / "records" / "m" / "b" / "s.parquet"
    assert read_records(path, Record, "job b") == records[300:] and read_records(path, Record, "other") == []
    assert stamped_settings(path) == {"dtype": "float32"}
    assert manifest.problems(root) == []


def test_later_records_join_and_packed_files_stay(run: tuple[Path, list[Record]], make_record: Maker) -> None:
    root, records = run
    pack(root)
    packed = {path: path.read_bytes() for path in root.rglob("*.parquet")}
    assert pack(root)[0] == sum(map(len, packed.values())) and all(p.read_bytes() == b for p, b in packed.items())
    more = [make_record(sample_index=9, prompt_sha256="new", output_ids=[1, 2, 3])]
    _write(root, "c", more)
    pack(root)
    assert read_folder(root / "records", Record) == [*records, *more]
    assert all(p.read_bytes() == b for p, b in packed.items() if p.parent != root)
    for label in "abc":
        _write(root, label, more)
    pack(root)
    assert read_folder(root / "records", Record) == more * 3
    assert pq.read_table(root / "shared.parquet")["prompt_sha256"].to_pylist() == [["new"]]


@pytest.mark.parametrize("constants", [False, True])
def test_a_file_packed_by_an_earlier_version_is_read_and_packed_anew(
    constants: bool, run: tuple[Path, list[Record]]
) -> None:
    """Of a file it shared prompts and answers, and kept every column; a later one stamped constant columns."""
    root, records = run
    pack(root)
    path, shared = root / "records" / "m" / "a" / "s.parquet", root / "shared.parquet"
    hashes = pq.read_table(shared)["prompt_sha256"].to_pylist()[0]
    whole = read_table(path)
    numbers = pa.array([hashes.index(value) for value in whole["prompt_sha256"].to_pylist()], pa.int32())
    place = whole.column_names.index("prompt_sha256")
    old = whole.set_column(place, pa.field("prompt_sha256", pa.int32()), numbers)
    stamps = whole.schema.metadata | {b"shared": b"../../../shared.parquet"}
    if constants:
        old, stamps = old.drop_columns("batch"), stamps | {b"constant": b'{"batch":["int64",8]}'}
    pq.write_table(old.replace_schema_metadata(stamps), path)
    pq.write_table(pq.read_table(shared).drop_columns(["output_text", "provenance", "frames"]), shared)
    (root / "records" / "m" / "b" / "s.parquet").unlink()
    manifest.rewrite(root)
    assert read_records(path, Record) == records[:300]
    before, after = pack(root)
    assert after < 0.7 * before and read_records(path, Record, "job a") == records[:300]
    assert pq.read_schema(path).names == ["measures", "parts"]
    assert stamped_settings(path) == {"dtype": "float32"} and b"settings" not in pq.read_schema(path).metadata


def test_shared_values_that_are_missing_or_others_are_refused(run: tuple[Path, list[Record]]) -> None:
    root, _ = run
    pack(root)
    shared, path = root / "shared.parquet", root / "records" / "m" / "a" / "s.parquet"
    table = pq.read_table(shared)
    hashes = table["prompt_sha256"].to_pylist()[0]
    swapped = table.set_column(0, table.field(0), [[hashes[::-1]]])
    unframed = table.drop_columns("frames")
    for other, message in (
        (swapped, "checksum"), (unframed, "not a parquet file of records"), (None, "which is missing"),
    ):  # fmt: skip
        shared.unlink()
        if other is not None:
            pq.write_table(other, shared)
        with pytest.raises(RecordSchemaError, match=message):
            read_records(path, Record)
    with pytest.raises(RecordSchemaError, match="which is missing"):
        stamped_settings(path)


def test_a_changed_file_is_not_packed(
    run: tuple[Path, list[Record]], make_record: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    root, _ = run
    path = root / "records" / "m" / "a" / "s.parquet"
    write_records(path, [make_record(score=0.9)], Record)
    before = path.read_bytes()
    assert main([str(root)]) == 1
    assert "changed since it was written" in capsys.readouterr().out
    assert path.read_bytes() == before and not (root / "shared.parquet").exists()


def test_every_parquet_file_is_encoded_anew_once_and_reads_back_equal(run: tuple[Path, list[Record]]) -> None:
    root, _ = run
    table = pa.table({
        "name": [f"layer {i % 7}" for i in range(500)], "share": [math.nan, *(1 / (i + 1) for i in range(499))],
        "right": [i % 3 == 0 for i in range(500)], "count": list(range(500)), "lists": [[i, i + 1] for i in range(500)],
    }).replace_schema_metadata({b"fingerprint": b"x"})  # fmt: skip
    path = root / "speed" / "m.parquet"
    path.parent.mkdir()
    write_parquet(table, path)
    manifest.seal(root, [path])
    old = path.stat().st_size
    assert not is_smallest(path)
    pack(root)
    new = pq.read_table(path)
    assert path.stat().st_size < 0.9 * old and is_smallest(path) and manifest.problems(root) == []
    assert new.schema.metadata == table.schema.metadata and repr(new.to_pylist()) == repr(table.to_pylist())
    before = path.stat().st_mtime_ns
    assert pack(root)[0] == pack(root)[1] and path.stat().st_mtime_ns == before
