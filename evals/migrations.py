"""Records written by older schemas: brought up to date step by step, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.records import BaseRecord, Record, SpeedRecord

R = TypeVar("R", bound=BaseRecord)
Fields = dict[str, Any]
Migration = Callable[[Fields], Fields]
_MEASURES = {
    "read_tokens_mean": "kv_tokens_read",
    "read_tokens_sparse": "kv_tokens_read_sparse",
    "kv_bytes_per_step": "kv_bytes_per_step",
    "metadata_bytes_per_step": "metadata_bytes_per_step",
    "truncated": "truncated",
    "prefill_ms": "prefill_ms",
    "decode_ms": "decode_ms",
    "decode_steps": "decode_steps",
}
_RENAMED = {"oracle_budget": "free_selection"}


class RecordSchemaError(LongDecodeError):
    """A stored record's schema version is unknown, or its fields do not fit the version it claims."""


def _add_truncated(fields: Fields) -> Fields:
    """Add ``truncated``; the tasks of version 1 had no end-of-sequence token to wait for."""
    return fields | {"truncated": None}


def _move_measures(fields: Fields) -> Fields:
    """Move the numbers of version 2 into ``measures``, under the names of version 3."""
    kept = {name: value for name, value in fields.items() if name not in _MEASURES}
    found = {new: float(fields[old]) for old, new in _MEASURES.items() if fields[old] is not None}
    return _rename_methods(kept | {"measures": found}, ("method", "label"))


def _add_measures(fields: Fields) -> Fields:
    """Add empty ``measures`` to a speed record of version 1."""
    return _rename_methods(fields | {"measures": {}}, ("subject", "label", "reference"))


def _rename_methods(fields: Fields, names: tuple[str, ...]) -> Fields:
    return fields | {name: _RENAMED.get(fields[name], fields[name]) for name in names}


MIGRATIONS: Mapping[type[BaseRecord], Mapping[int, Migration]] = {
    Record: {1: _add_truncated, 2: _move_measures},
    SpeedRecord: {1: _add_measures},
}
"""``MIGRATIONS[kind][v]`` turns the fields of a version ``v`` record into those of version ``v + 1``."""


def load_record(fields: Mapping[str, Any], source: str, kind: type[R]) -> R:
    """Read one stored record, migrated to the current schema where a chain of migrations leads there.

    Args:
        fields: the record as stored, ``schema_version`` included.
        source: file and place, for the error message.
        kind: ``Record`` or ``SpeedRecord``.

    Raises:
        RecordSchemaError: no chain of migrations leads here, or the fields are not those of the schema.
    """
    table, latest = MIGRATIONS[kind], kind.model_fields["schema_version"].default
    current = dict(fields)
    version = current.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise RecordSchemaError(f"{source}: a record without a schema_version")
    try:
        while version != latest:
            if version not in table:
                raise RecordSchemaError(
                    f"{source}: {kind.__name__} of schema_version {fields['schema_version']}; this code reads {latest}"
                    f" and migrates from {sorted(table)}"
                )
            current = table[version](current)
            version += 1
            current["schema_version"] = version
        return kind.model_validate(current)
    except KeyError as error:
        raise RecordSchemaError(f"{source}: field {error} is missing") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise RecordSchemaError(f"{source}: field {where}: {first['msg']}") from error
