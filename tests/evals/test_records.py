"""Committed records are read as they stand; records of another schema, or without a result, are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from longdecode.evals.records import Record, RecordSchemaError, SpeedRecord, load_record
from longdecode.evals.store import read_records

EVIDENCE = Path(__file__).resolve().parents[2] / "results" / "h200"


@pytest.fixture
def speed_fields(make_record: Callable[..., Record]) -> dict[str, Any]:
    """A speed record of a ceiling, as stored."""
    shared = make_record().model_dump()
    names = ("profile", "model", "params", "context", "batch", "budget", "budget_tokens", "seed", "provenance")
    return {name: shared[name] for name in names} | {
        "schema_version": 3, "bench": "decode", "weights": "random", "method": "free_selection",
        "variant": "free_selection", "stage": "step", "status": "ok", "samples": [{"us": 1.0}], "reference": "full",
    }  # fmt: skip


def test_a_stored_record_is_read(make_record: Callable[..., Record], speed_fields: dict[str, Any]) -> None:
    record = make_record(method="quest", variant="quest_16")
    assert load_record(record.model_dump(), "x", Record) == record
    assert load_record(speed_fields, "x", SpeedRecord).variant == "free_selection"


@pytest.mark.parametrize("version", [0, 2, 4, None, True])
def test_another_schema_is_refused_by_name(speed_fields: dict[str, Any], version: Any) -> None:
    with pytest.raises(RecordSchemaError, match=r"^here: .*schema_version"):
        load_record(speed_fields | {"schema_version": version}, "here", SpeedRecord)


def test_a_field_that_a_record_lacks_is_named(speed_fields: dict[str, Any]) -> None:
    del speed_fields["weights"]
    with pytest.raises(RecordSchemaError, match="here: field weights"):
        load_record(speed_fields, "here", SpeedRecord)


@pytest.mark.parametrize(
    ("path", "kind"), [("records/miniature/quest/mini_recall", Record), ("speed/miniature", SpeedRecord)]
)
def test_the_committed_evidence_is_read(path: str, kind: type[Record] | type[SpeedRecord]) -> None:
    file = EVIDENCE / f"{path}.parquet"
    rows, found = pq.read_table(file).to_pylist(), read_records(file, kind)
    assert len(found) == len(rows) > 0
    assert {record.provenance.fingerprint for record in found} == {None}  # measured before there were any
    for row, record in zip(rows, found, strict=True):
        assert (row["label"], row.get("subject", record.method)) == (record.variant, record.method)
        stored = (row["status"], row["context"], json.loads(row["params"]))
        assert stored == (record.status, record.context, record.params)


@pytest.mark.parametrize(
    "wrong",
    [
        {"score": None}, {"score": float("nan")}, {"score": float("inf")}, {"status": "oom"},
        {"status": "timeout", "score": 0.0}, {"sample_index": -1}, {"measures": {"kl": float("nan")}},
        {"parts": [0.0, float("nan")]},
    ],
)  # fmt: skip
def test_a_score_is_there_exactly_where_the_status_is_ok(make_record: Callable[..., Record], wrong: Any) -> None:
    with pytest.raises(ValidationError):
        make_record(**({"score": 1.0} | wrong))


def test_a_time_is_there_exactly_where_the_status_is_ok(speed_fields: dict[str, Any]) -> None:
    for wrong in ({"samples": []}, {"status": "oom"}, {"samples": [{"us": float("nan")}]}):
        with pytest.raises(RecordSchemaError):
            load_record(speed_fields | wrong, "x", SpeedRecord)


@pytest.mark.parametrize(
    ("task", "index", "prompt", "alike"),
    [("fidelity_forced", 3, "b", True), ("fidelity_forced", 4, "b", False), ("mini_recall_single", 1, "b", False),
     ("mini_recall_single", 1, "a", True), ("gone", 1, "b", False)],
)  # fmt: skip
def test_what_a_problem_is(make_record: Callable[..., Record], task: str, index: int, prompt: str, alike: bool) -> None:
    """A text, where tasks read texts, or a prompt."""
    first = make_record(suite=task.rpartition("_")[0], task=task, sample_index=0, prompt_sha256="a" * 64)
    other = make_record(suite=task.rpartition("_")[0], task=task, sample_index=index, prompt_sha256=prompt * 64)
    assert (first.problem == other.problem) == alike
