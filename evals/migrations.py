"""Records written by older schemas: brought up to date step by step, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.records import SCHEMA_VERSION, Record

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def _truncation(fields: dict[str, Any]) -> dict[str, Any]:
    """Version 2 says whether a generation was cut off; the tasks of version 1 had no end-of-sequence token to await."""
    return fields | {"truncated": None}


MIGRATIONS: Mapping[int, Migration] = {1: _truncation}
"""``MIGRATIONS[v]`` turns the fields of a version ``v`` record into those of version ``v + 1``."""


class RecordSchemaError(LongDecodeError):
    """A stored record's schema version is unknown, or its fields do not fit the version it claims."""


def load_record(fields: Mapping[str, Any], source: str, migrations: Mapping[int, Migration] | None = None) -> Record:
    """Read one stored record, migrated to the current schema where a chain of migrations leads there.

    Args:
        fields: the record as stored, ``schema_version`` included.
        source: where it was found, for the error message.
        migrations: the table to use; the project's own by default.

    Raises:
        RecordSchemaError: no chain of migrations leads here, or the fields are not those of the schema.
    """
    table = MIGRATIONS if migrations is None else migrations
    current = dict(fields)
    version = current.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise RecordSchemaError(f"{source}: a record without a schema_version")
    while version != SCHEMA_VERSION:
        if version not in table:
            raise RecordSchemaError(
                f"{source}: record of schema_version {current['schema_version']}; this code reads {SCHEMA_VERSION}"
                f" and migrates from {sorted(table) or 'none'}"
            )
        current = dict(table[version](current))
        version += 1
        current["schema_version"] = version
    try:
        return Record.model_validate(current)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordSchemaError(f"{source}: field {where}: {first['msg']}") from error
