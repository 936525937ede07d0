"""Staleness: which evidence was measured with other code than today's."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable

from longdecode.engine.errors import ConfigError
from longdecode.evals.hashing import code_hash, gate_code_hash, quality_code_hash, speed_code_hash
from longdecode.evals.provenance import revision
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.summary import REFERENCE_METHOD
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.throughput.equal_memory_spec import JOB as EQUAL_MEMORY_JOB
from longdecode.evals.throughput.own_choices_spec import JOB as OWN_CHOICES_JOB
from longdecode.evals.throughput.spec import KERNELS_JOB
from longdecode.reporting.results import GateRecord, Results, TextFile
from longdecode.reporting.wording import listing

_SHOWN = 9
_TEXTS = "longdecode.evals.generation.job"


def measured_before(
    scores: Iterable[Record],
    times: Iterable[SpeedRecord],
    unnamed: Container[str] = (),
    texts: Iterable[TextFile] = (),
    gates: Iterable[GateRecord] = (),
) -> list[str]:
    """Say in a sentence each which evidence is of older code; nothing where all of it is of today's.

    Args:
        scores: records of quality.
        times: records of speed.
        unnamed: labels that are counted and not named, such as ablations.
        texts: files of long texts; those of one job have one hash, and one of each method that drafts.
        gates: conformance of the labels.
    """
    return [
        f"Measured before {revision()[:12]}: {kind} of {_named(labels, unnamed)} (revision {made[:12]}; the code "
        "behind them has changed since)."
        for (kind, made), labels in sorted(_older_labels(scores, times, texts, gates).items())
    ]


def older(results: Results) -> list[str]:
    """Say in a sentence each which evidence of a run is of older code."""
    return measured_before(results.records, results.speed_records, results.ablations, results.text_files, results.gates)


def _older_labels(
    scores: Iterable[Record], times: Iterable[SpeedRecord], texts: Iterable[TextFile], gates: Iterable[GateRecord]
) -> dict[tuple[str, str], set[str]]:
    """Return the labels whose evidence carries a code hash that today's code does not have, by kind and revision."""
    old: dict[tuple[str, str], set[str]] = {}
    for kind, records in (("scores", scores), ("times", times)):
        for record in records:
            if record.provenance.code_hash != _hash_of(record):
                old.setdefault((kind, record.provenance.revision), set()).add(record.label)
    for file in texts:
        for record in old_texts(file):
            old.setdefault(("texts", record.provenance.revision), set()).add(record.label)
    for gate in gates:
        if gate.code_hash != _gate_hash(gate.method):
            old.setdefault(("gates", gate.revision), set()).add(gate.label)
    return old


def old_texts(file: TextFile) -> list[Record]:
    """Return the texts of a job that were written with other code than today's, the drafter's included."""
    today = code_hash([_TEXTS], sorted({record.method for record in file.records}))

    def is_old(record: Record) -> bool:
        drafter = record.params.get("drafter")
        same = drafter is None or file.drafters.get(drafter) == _drafter_hash(drafter)
        return record.provenance.code_hash != today or not same

    return [record for record in file.records if is_old(record)]


def _hash_of(record: Record | SpeedRecord) -> str:
    if isinstance(record, Record):
        return _quality_hash(record.method, record.task)
    return _speed_hash(record.bench, record.subject)


@functools.cache
def _quality_hash(method: str, task: str) -> str:
    """Today's hash of the code behind a score; empty where the method or the task is gone."""
    try:
        return quality_code_hash(method, type(get_task(task)).__module__)
    except ConfigError:
        return ""


@functools.cache
def _drafter_hash(method: str) -> str:
    return code_hash((), [method])


@functools.cache
def _gate_hash(method: str) -> str:
    return gate_code_hash(method)


@functools.cache
def _speed_hash(bench: str, subject: str) -> str:
    module = {"decode": "decode", "offload": EQUAL_MEMORY_JOB, OWN_CHOICES_JOB: OWN_CHOICES_JOB}.get(bench, KERNELS_JOB)
    return speed_code_hash(module, () if module == KERNELS_JOB else (REFERENCE_METHOD, subject))


def _named(labels: set[str], unnamed: Container[str]) -> str:
    names = sorted(label for label in labels if label not in unnamed)[:_SHOWN]
    more = len(labels) - len(names)
    return listing(names) if not more else f"{', '.join([*names, ''])}{more} more label{'s' * (more > 1)}"
