"""Tell evidence that was measured with other code than today's."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from longdecode.engine.errors import ConfigError
from longdecode.evals.fingerprint import code_hash, gate_code_hash, quality_code_hash, speed_code_hash
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.summary import REFERENCE_METHOD
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.throughput.spec import EQUAL_MEMORY, KERNELS, OWN_CHOICES
from longdecode.reporting.results import Results, TextFile
from longdecode.reporting.wording import listing

_TEXTS = "longdecode.evals.generation.job"


def code_line(results: Results) -> str:
    """Return one line: the revisions behind a run's records, and for which kinds of evidence code has changed since."""
    records = [*results.records, *results.speed_records, *results.texts]
    revisions = {record.provenance.revision for record in records} | {gate.revision for gate in results.gates}
    changed = list(dict.fromkeys(_changed(results)))
    since = f"code behind {listing(changed)} has changed since" if changed else "no code behind them has changed since"
    return f"Code revision {listing(sorted(revision[:12] for revision in revisions))}; {since}." if revisions else ""


def _changed(results: Results) -> Iterator[str]:
    """Yield the kinds of evidence that carry a code hash which today's code does not have."""
    if any(map(is_older, results.records)):
        yield "scores"
    if any(map(is_older, results.speed_records)):
        yield "times"
    if any(old_texts(file) for file in results.text_files):
        yield "texts"
    if any(gate.code_hash != _gate_hash(gate.method) for gate in results.gates):
        yield "gates"


def is_older(record: Record | SpeedRecord) -> bool:
    """Return true for a score or a time of other code than today's."""
    if isinstance(record, Record):
        return record.provenance.code_hash != _quality_hash(record.method, record.task)
    return record.provenance.code_hash != _speed_hash(record.bench, record.method)


def old_texts(file: TextFile) -> list[Record]:
    """Return the texts of a job that were written with other code than today's, the drafter's included."""
    drafters = {record.params["drafter"] for record in file.records if "drafter" in record.params}
    today = code_hash([_TEXTS], sorted({record.method for record in file.records} | drafters))
    return [record for record in file.records if record.provenance.code_hash != today]


@functools.cache
def _quality_hash(method: str, task: str) -> str:
    """Today's hash of the code behind a score; empty where the method or the task is gone."""
    try:
        return quality_code_hash(method, get_task(task).code_module)
    except ConfigError:
        return ""


@functools.cache
def _gate_hash(method: str) -> str:
    return gate_code_hash(method)


@functools.cache
def _speed_hash(bench: str, subject: str) -> str:
    module = {"decode": "decode", "offload": EQUAL_MEMORY, OWN_CHOICES: OWN_CHOICES}.get(bench, KERNELS)
    return speed_code_hash(module, () if module == KERNELS else (REFERENCE_METHOD, subject))
