"""Staleness: which evidence was measured with other code than today's."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from longdecode.evals.hashing import code_hash, speed_code_hash
from longdecode.evals.provenance import revision
from longdecode.evals.records import Record
from longdecode.evals.throughput.records import SpeedRecord
from longdecode.methods.registry import method_names
from longdecode.reporting.wording import listing

_SHOWN = 9


def measured_before(scores: Iterable[Record], times: Iterable[SpeedRecord]) -> list[str]:
    """Say which scores and times carry a code hash that today's code does not have; nothing where all do.

    Args:
        scores: records of quality.
        times: records of speed.
    """
    old: dict[tuple[str, str], set[str]] = {}
    for kind, records in (("scores", scores), ("times", times)):
        for record in records:
            if record.provenance.code_hash != _today(kind, _method_of(record)):
                old.setdefault((kind, record.provenance.revision), set()).add(record.label)
    return [
        f"Measured before {revision()[:12]}: {kind} of {_named(sorted(labels))} (revision {made[:12]}; the code behind "
        "them has changed since)."
        for (kind, made), labels in sorted(old.items())
    ]


def _method_of(record: Record | SpeedRecord) -> str:
    return record.method if isinstance(record, Record) else record.subject


@functools.cache
def _today(kind: str, method: str) -> str:
    return speed_code_hash() if kind == "times" else code_hash(method) if method in method_names() else ""


def _named(names: list[str]) -> str:
    left = len(names) - _SHOWN
    return listing(names) if left <= 0 else f"{', '.join(names[:_SHOWN])} and {left} more labels"
