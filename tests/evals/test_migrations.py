"""Committed records of older schemas are read under today's names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from longdecode.evals.migrations import RecordSchemaError, load_record
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.storage import read_records, read_table

EVIDENCE = Path(__file__).resolve().parents[2] / "results" / "h200"
OLD = {
    "read_tokens_mean": 12.5, "read_tokens_sparse": 4.0, "kv_bytes_per_step": 100.0, "metadata_bytes_per_step": 0.0,
    "prefill_ms": 1.0, "decode_ms": None, "decode_steps": 3,
}  # fmt: skip


def old_fields(record: Record, version: int) -> dict[str, Any]:
    fields = record.model_dump() | OLD | {"schema_version": version}
    del fields["measures"]
    return fields | ({"truncated": True} if version == 2 else {})


def test_numbers_of_older_records_become_measures(make_record: Callable[..., Record]) -> None:
    record = make_record(method="quest", label="quest_16")
    measures = {
        "kv_tokens_read": 12.5, "kv_tokens_read_sparse": 4.0, "kv_bytes_per_step": 100.0, "metadata_bytes_per_step": 0,
        "prefill_ms": 1.0, "decode_steps": 3.0,
    }  # fmt: skip
    for version, more in ((1, {}), (2, {"truncated": 1.0})):
        found = load_record(old_fields(record, version), "x", Record)
        assert found == record.model_copy(update={"measures": measures | more})


def test_a_renamed_method_is_found_under_its_name(
    make_record: Callable[..., Record], speed_fields: dict[str, Any]
) -> None:
    old = old_fields(make_record(method="oracle_budget", label="oracle_budget"), 2)
    assert load_record(old, "x", Record).method == "free_selection"
    found = load_record(speed_fields, "x", SpeedRecord)
    assert (found.subject, found.label, found.reference, found.measures) == (
        "free_selection", "free_selection", "full", {},
    )  # fmt: skip


@pytest.fixture
def speed_fields(make_record: Callable[..., Record]) -> dict[str, Any]:
    """A speed record of version 1, of a ceiling that has another name now."""
    shared = make_record().model_dump()
    names = ("profile", "model", "params", "context", "batch", "budget", "budget_tokens", "seed", "provenance")
    return {name: shared[name] for name in names} | {
        "schema_version": 1, "bench": "decode", "weights": "random", "subject": "oracle_budget",
        "label": "oracle_budget", "stage": "step", "status": "ok", "samples": [{"us": 1.0}], "reference": "full",
    }  # fmt: skip


def test_a_field_that_an_older_record_lacks_is_named(make_record: Callable[..., Record]) -> None:
    fields = old_fields(make_record(), 2)
    del fields["decode_ms"]
    with pytest.raises(RecordSchemaError, match="decode_ms"):
        load_record(fields, "x", Record)


@pytest.mark.parametrize(
    ("path", "kind"), [("records/miniature/quest/mini_recall", Record), ("speed/miniature", SpeedRecord)]
)
def test_the_committed_evidence_is_read(path: str, kind: type[Record] | type[SpeedRecord]) -> None:
    file = EVIDENCE / f"{path}.parquet"
    rows, found = read_table(file).to_pylist(), read_records(file, kind)
    assert len(found) == len(rows) > 0
    for row, record in zip(rows, found, strict=True):
        assert (row["status"], row["context"], json.loads(row["params"])) == (
            record.status, record.context, record.params,
        )  # fmt: skip
        if "read_tokens_mean" in row:
            assert record.measures.get("kv_tokens_read") == row["read_tokens_mean"]


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
