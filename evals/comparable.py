"""Compare results before they stand in one table: settings, code, data, weights and number format."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.evals.hashing import quality_code_hash
from longdecode.evals.records import Record
from longdecode.evals.run_config import RunConfig
from longdecode.evals.storage import stamped_settings
from longdecode.evals.tasks.registry import get_task

_REMEDY = "run again, which makes it anew, or give this run a name of its own (--config profile=NAME)"


class SettingsError(LongDecodeError):
    """A file of results was made under other settings, code or data than those it would stand beside."""


def require_same_settings(path: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse a file that was made under other settings.

    A file without a stamp is of an earlier version: refused too. Of the places of real data those count that the file's
    suite reads.

    Raises:
        SettingsError: the message names the file, the setting and the remedy.
    """
    stamped = stamped_settings(path)
    if stamped is None:
        raise SettingsError(f"{path}: made by an earlier version, without its settings; {_REMEDY}")
    for name in sorted(wanted):  # others in the stamp are of an earlier version, and change nothing today
        made = stamped.get(name)
        if name == "data" and made is not None:  # a stamp of an earlier version has the places of all suites
            made = {key: place for key, place in made.items() if key in wanted[name]}
        if made != wanted[name]:
            raise SettingsError(
                f"{path}: made with {name} {_shown(made)}, but this run has {_shown(wanted.get(name))}; " + _REMEDY
            )


def require_comparable(run: RunConfig, found: Mapping[Path, Sequence[Record]]) -> None:
    """Refuse records of other code than today's, and records of one table that saw other data, weights or numbers.

    Args:
        found: the records of each file.

    Raises:
        SettingsError: the message names the files and the remedy.
    """
    seen: dict[tuple[str, ...], tuple[str, Path]] = {}
    for path, records in found.items():
        for record in records:
            if record.profile != run.profile:
                raise SettingsError(f"{path}: made by the profile {record.profile!r}, not {run.profile!r}; {_REMEDY}")
            if record.status != "ok":
                continue
            origin = record.provenance
            if origin.code_hash != _code_of(record.method, record.task):
                raise SettingsError(
                    f"{path}: {record.task} was scored with other code (revision {origin.revision[:12]}) than today's; "
                    f"{_REMEDY}"
                )
            place = (record.model, record.task, str(record.context), str(record.seed))
            for what, key, value in (
                ("data", place, origin.data_hash),
                ("weights", (record.model,), origin.model_hash),
                ("dtype", (record.model,), origin.dtype),
            ):
                first, where = seen.setdefault((what, *key), (value, path))
                if first != value:
                    raise SettingsError(
                        f"{path}: its {what} ({value[:12]}) differ from those of {where} ({first[:12]}) on "
                        f"{'/'.join(key)}; {_REMEDY}"
                    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


@functools.cache
def _code_of(method: str, task: str) -> str:
    """Return today's hash of the code behind a score; empty where the method or the task is gone."""
    try:
        return quality_code_hash(method, type(get_task(task)).__module__)
    except ConfigError:
        return ""
