"""speed.csv, growth, break-even and breakdown from records made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.evals.throughput import derived
from longdecode.evals.throughput.records import SpeedRecord
from longdecode.evals.throughput.storage import SpeedJournal, journal_path, read_speed_records, write_speed_records
from longdecode.evals.throughput.summary import COLUMNS, speed_table

Make = Callable[..., SpeedRecord]


def row_of(records: list[SpeedRecord], index: int = 0) -> dict[str, Any]:
    return speed_table(records, 0.95, 200).iloc[index].to_dict()


def ceiling(make: Make, us: float = 100.0, size: int = 400_000, **other: Any) -> SpeedRecord:
    """A probe that reads ``size`` bytes in ``us``: 4 GB/s by default."""
    fields = {"bench": "ceiling", "subject": "read_bandwidth", "label": "sum", "stage": "op", "budget": "full"}
    return make([us] * 3, bytes_min=size, **(fields | other))


def test_a_row_by_hand(speed_record: Make) -> None:
    timed = speed_record(
        [100, 200, 300, 400, 900], [300, 400, 900, 800, 9], disturbed=[4], bytes_min=500_000, batch=4,
        sm_clock_mhz=(1900, 1980), peak_bytes=7, expected_bytes=5,
    )  # fmt: skip
    row = row_of([timed, ceiling(speed_record), ceiling(speed_record, us=200.0)])
    assert (row["n"], row["disturbed"]) == (4, 1)
    assert row["median_us"] == 250 and row["p5_us"] == pytest.approx(115) and row["p95_us"] == pytest.approx(385)
    assert row["ratio"] == pytest.approx(2.5)  # ratios 3, 2, 3 and 2
    assert row["ratio_low"] >= 2 and row["ratio_high"] <= 3
    assert row["floor_us"] == pytest.approx(125)  # at the better probe's 4 GB/s
    assert row["fraction"] == pytest.approx(0.5)
    assert row["gb_per_s"] == pytest.approx(2.0)
    assert row["tokens_per_s"] == pytest.approx(4 / 250e-6)
    assert (row["sm_clock_low_mhz"], row["sm_clock_high_mhz"], row["peak_bytes"]) == (1900, 1980, 7)
    assert tuple(row) == COLUMNS


def test_a_ceiling_belongs_to_its_device(speed_record: Make) -> None:
    other = speed_record([1.0], bytes_min=1000).provenance.model_copy(update={"device": "another gpu"})
    row = row_of([speed_record([1.0], bytes_min=1000), ceiling(speed_record, provenance=other)])
    assert pd.isna(row["floor_us"]) and pd.isna(row["fraction"])


def test_all_disturbed_is_a_hole_and_not_a_failure(speed_record: Make) -> None:
    row = row_of([speed_record([5.0, 6.0], [1.0, 1.0], disturbed=[0, 1], bytes_min=10), ceiling(speed_record)])
    assert (row["status"], row["n"], row["disturbed"]) == ("ok", 0, 2)
    assert pd.isna(row["median_us"]) and pd.isna(row["ratio"]) and pd.isna(row["fraction"])


def test_a_cell_that_could_not_run_keeps_its_row(speed_record: Make) -> None:
    row = row_of([speed_record(status="oom", reason="too large")])
    assert (row["status"], row["reason"], row["n"]) == ("oom", "too large", 0)
    assert pd.isna(row["median_us"])


def test_prefill_counts_every_token(speed_record: Make) -> None:
    row = row_of([speed_record([1e6], stage="prefill", context=2048, batch=2)])
    assert row["tokens_per_s"] == 4096
    assert pd.isna(row_of([speed_record([1e6], stage="setup")])["tokens_per_s"])


def test_growth_is_per_thousand_tokens_and_per_sequence(speed_record: Make) -> None:
    records = [
        speed_record([100 + 3 * context / 1024 + 10 * batch], context=context, batch=batch)
        for context in (1024, 2048, 8192)
        for batch in (1, 4)
    ]
    table = derived.growth_table(speed_table(records, 0.95, 200), 0.95)
    by_context = table[(table["axis"] == "context") & (table["fixed"] == 4)].iloc[0]
    assert (by_context["slope_us"], by_context["intercept_us"]) == pytest.approx((3.0, 140.0))
    assert by_context["points"] == 3 and by_context["r2"] == pytest.approx(1.0)
    by_batch = table[(table["axis"] == "batch") & (table["fixed"] == 2048)].iloc[0]
    assert by_batch["slope_us"] == pytest.approx(10.0)
    assert tuple(table.columns) == derived.GROWTH_COLUMNS


@pytest.mark.parametrize(
    ("ratios", "verdict", "value"),
    [
        ([0.5, 0.9, 1.5, 2.0], "from", 4096),
        ([1.1, 1.2, 1.5, 2.0], "always", None),
        ([0.5, 0.6, 0.7, 0.8], "never", None),
        ([0.5, 1.2, 0.7, 1.5], "unknown", None),
        ([1.5], "unknown", None),
    ],
)
def test_break_even(speed_record: Make, ratios: list[float], verdict: str, value: int | None) -> None:
    records = [
        speed_record([100.0] * 4, [100.0 * ratio] * 4, context=1024 * 2**index) for index, ratio in enumerate(ratios)
    ]
    table = derived.breakeven_table(speed_table(records, 0.95, 200))
    row = table[table["axis"] == "context"].iloc[0]
    assert row["verdict"] == verdict
    assert pd.isna(row["value"]) if value is None else row["value"] == value


def test_breakdown_parts_add_up_to_the_step(speed_record: Make) -> None:
    def paired(us: float, **fields: Any) -> SpeedRecord:
        # Each pair was taken while the device ran at another speed: times scale, ratios do not.
        drift = 1 + us / 1000
        return speed_record([us * drift] * 3, [100.0 * drift] * 3, **fields)

    records = [
        speed_record([100.0] * 3, [100.0] * 3, subject="full", label="full", budget="full"),
        paired(60.0),
        paired(50.0, stage="no_selection"),
        paired(40.0, stage="no_attention", subject="no_attention", label="no_attention", budget="full"),
        paired(30.0, stage="projections", subject="projections", label="projections", budget="full"),
        paired(500.0, subject="hf_full", label="hf_full", budget="full"),
    ]
    table = derived.breakdown_table(speed_table(records, 0.95, 200))
    parts = {label: found.set_index("part")["us"].to_dict() for label, found in table.groupby("label")}
    assert parts["quest"] == pytest.approx({"weights": 30, "selection": 10, "attention": 10, "rest": 10})
    assert parts["full"] == pytest.approx({"weights": 30, "selection": 0, "attention": 60, "rest": 10})
    assert set(parts) == {"quest", "full"}


def test_records_come_back_from_parquet_and_journal_as_they_were(tmp_path: Path, speed_record: Make) -> None:
    records = [
        speed_record([1.5, 2.5], [3.0, 4.0], disturbed=[1], sm_clock_mhz=(1, 2), launch={"op": {"warps": 4}}),
        speed_record(status="unsupported", reason="no such thing"),
    ]
    path = tmp_path / "results" / "speed" / "job.parquet"
    write_speed_records(path, records)
    assert read_speed_records(path) == records
    journal = journal_path(path)
    assert journal == tmp_path / "results" / "journal" / "speed" / "job.jsonl"
    with SpeedJournal(journal, "f") as opened:
        for record in records:
            opened.append(record)
    with journal.open("ab") as handle:
        handle.write(b'{"cut off')
    with SpeedJournal(journal, "f") as opened:
        assert opened.records == records
    with SpeedJournal(journal, "other code") as opened:
        assert opened.records == []
    assert (journal.parent / "job.jsonl.stale-1").exists()
