"""Compare two runs: records equal apart from when and at which commit they were made and how long it took."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longdecode.evals.records import Record
from longdecode.evals.storage import read_folder, read_records

_MOMENTS = ("started_at", "sm_clock_mhz", "revision", "dirty")  # code_hash says which code it was
_KEY = ("model", "variant", "suite", "task", "budget", "context", "batch", "seed", "sample_index")


def comparable(record: Record) -> dict[str, Any]:
    """Return the fields of a record that two runs of the same code on the same machine must share."""
    fields = record.model_dump()
    fields["measures"] = {name: value for name, value in fields["measures"].items() if not name.endswith("_ms")}
    fields["provenance"] = {name: value for name, value in fields["provenance"].items() if name not in _MOMENTS}
    return fields


def differences(left: Iterable[Record], right: Iterable[Record]) -> list[str]:
    """One line for each record that only one run has, and for each field in which two runs differ."""
    one, other = ({_key(record): comparable(record) for record in records} for records in (left, right))
    lines = [f"only in the first: {_say(key)}" for key in sorted(one.keys() - other.keys())]
    lines += [f"only in the second: {_say(key)}" for key in sorted(other.keys() - one.keys())]
    for key in sorted(one.keys() & other.keys()):
        for name, value in one[key].items():
            if value != other[key][name]:
                lines.append(f"{_say(key)}: {name}: {value!r} and {other[key][name]!r}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Compare two parquet files or two folders of them; 0 where they agree, 1 where not."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.compare", description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    given = parser.parse_args(arguments)
    first, second = (
        read_folder(path, Record) if path.is_dir() else read_records(path, Record)
        for path in (given.first, given.second)
    )
    if not first and not second:
        print(f"no records below {given.first} and {given.second}", file=sys.stderr)
        return 1
    lines = differences(first, second)
    print("\n".join(lines) if lines else f"{len(first)} records are equal")
    return 1 if lines else 0


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in _KEY)


def _say(key: tuple[Any, ...]) -> str:
    return " ".join(f"{name}={value}" for name, value in zip(_KEY, key, strict=True))


if __name__ == "__main__":
    sys.exit(main())
