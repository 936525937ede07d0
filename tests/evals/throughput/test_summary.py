"""speed.csv, growth, break-even and breakdown from records made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.evals.records import SpeedRecord
from longdecode.evals.store import read_records, write_records
from longdecode.evals.throughput import derived
from longdecode.evals.throughput.summary import COLUMNS, speed_table

Make = Callable[..., SpeedRecord]


def row_of(records: list[SpeedRecord], index: int = 0) -> dict[str, Any]:
    return speed_table(records, 0.95, 200).iloc[index].to_dict()


def ceiling(make: Make, us: float = 100.0, size: int = 400_000, **other: Any) -> SpeedRecord:
    """A probe that reads ``size`` bytes in ``us``: 4 GB/s by default."""
    fields = {"bench": "ceiling", "method": "read_bandwidth", "variant": "sum", "stage": "op", "budget": "full"}
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
        speed_record([100.0] * 3, [100.0] * 3, method="full", variant="full", budget="full"),
        paired(60.0),
        paired(50.0, stage="no_selection"),
        paired(40.0, stage="no_attention", method="no_attention", variant="no_attention", budget="full"),
        paired(30.0, stage="projections", method="projections", variant="projections", budget="full"),
        paired(500.0, method="hf_full", variant="hf_full", budget="full"),
    ]
    table = derived.breakdown_table(speed_table(records, 0.95, 200))
    parts = {label: found.set_index("part")["us"].to_dict() for label, found in table.groupby("label")}
    assert parts["quest"] == pytest.approx({"weights": 30, "selection": 10, "attention": 10, "rest": 10})
    assert parts["full"] == pytest.approx({"weights": 30, "selection": 0, "attention": 60, "rest": 10})
    assert set(parts) == {"quest", "full"}


def test_growth_keeps_an_ops_own_sizes_apart(speed_record: Make) -> None:
    fields = {"bench": "kernel", "method": "hybrid_attention", "variant": "longdecode", "stage": "op", "budget": "0.1"}
    records = [
        speed_record([10.0 * heads * context / 1024], context=context, params={"full_heads": heads}, **fields)
        for heads in (1, 8)
        for context in (1024, 2048, 4096)
    ]
    speed = speed_table(records, 0.95, 200)
    assert speed["op_sizes"].tolist() == ["full_heads=1"] * 3 + ["full_heads=8"] * 3
    table = derived.growth_table(speed, 0.95)
    slopes = dict(zip(table["op_sizes"], table["slope_us"], strict=True))
    assert slopes == pytest.approx({"full_heads=1": 10.0, "full_heads=8": 80.0})


def corrected(make: Make, mode: str, period: int, **other: Any) -> list[SpeedRecord]:
    """Full at 100 us; a label whose step takes 50 us and whose correction takes 120."""
    params = {"correction": mode, "correction_period": period}
    full = make([100.0] * 4, [100.0] * 4, method="full", variant="full", budget="full")
    step = make([50.0] * 4, [99.0, 100.0, 100.0, 101.0], variant="quest_cc")
    correction = make([120.0] * 4, [98.0, 100.0, 100.0, 102.0], variant="quest_cc", stage="correction", params=params)
    return [full, step, correction.model_copy(update=other)]


@pytest.mark.parametrize(("mode", "us"), [("rewrite", 50 + 120 / 8), ("dense_step", 50 + (120 - 50) / 8)])
def test_a_correction_costs_its_share_of_every_token(speed_record: Make, mode: str, us: float) -> None:
    speed = speed_table(corrected(speed_record, mode, 8), 0.95, 200)
    (row,) = derived.correction_table(speed).to_dict("records")
    assert (row["mode"], row["period"], row["label"]) == (mode, 8, "quest_cc")
    assert (row["step_us"], row["correction_us"]) == pytest.approx((50.0, 120.0))
    assert row["per_token_us"] == pytest.approx(us) and row["ratio"] == pytest.approx(100 / us)
    times = {stage: found.iloc[0] for stage, found in speed.groupby("stage") if stage == "correction"}
    step = speed[(speed["label"] == "quest_cc") & (speed["stage"] == "step")].iloc[0]
    kept = 1.0 if mode == "rewrite" else 7 / 8
    for end, bound in (("ratio_low", "ratio_low"), ("ratio_high", "ratio_high")):
        of_step = kept * (1 / step[end] - 1 / step["ratio"])
        of_correction = (1 / times["correction"][end] - 1 / times["correction"]["ratio"]) / 8
        assert abs(1 / row[bound] - 1 / row["ratio"]) == pytest.approx((of_step**2 + of_correction**2) ** 0.5)
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]


def test_ratios_over_every_baseline(speed_record: Make) -> None:
    stock = {"method": "hf_full", "budget": "full"}
    records = [
        *corrected(speed_record, "rewrite", 8),
        speed_record([40.0] * 4, [98.0, 100.0, 100.0, 103.0]),
        speed_record([400.0] * 4, [99.0, 100.0, 100.0, 102.0], variant="hf_full", **stock),
        speed_record([200.0] * 4, [100.0] * 4, variant="hf_full_static", context=2048, **stock),
    ]
    speed = speed_table(records, 0.95, 200)
    table = derived.baselines_table(speed, derived.correction_table(speed))
    found = table.set_index(["label", "baseline"])
    assert set(found.index) == {
        ("full", "hf_full"), ("quest", "full"), ("quest", "hf_full"), ("quest_cc", "full"), ("quest_cc", "hf_full"),
    }  # fmt: skip
    assert found["ratio"].to_dict() == pytest.approx(
        {
            ("full", "hf_full"): 4.0, ("quest", "full"): 2.5, ("quest", "hf_full"): 10.0,
            ("quest_cc", "full"): 100 / 65, ("quest_cc", "hf_full"): 400 / 65,
        }
    )  # fmt: skip
    assert found["how"].to_dict() == {
        ("full", "hf_full"): "paired", ("quest", "full"): "paired", ("quest", "hf_full"): "through full",
        ("quest_cc", "full"): "paired, with correction", ("quest_cc", "hf_full"): "through full, with correction",
    }  # fmt: skip
    mine = speed[speed["label"] == "quest"].iloc[0]
    theirs = speed[speed["label"] == "hf_full"].iloc[0]
    both = found.loc[("quest", "hf_full")]
    spread = (np.log(mine["ratio_high"] / mine["ratio"]), np.log(theirs["ratio"] / theirs["ratio_low"]))
    assert np.log(both["high"] / both["ratio"]) == pytest.approx(np.hypot(*spread))
    alone = found.loc[("full", "hf_full")]
    assert (alone["low"], alone["high"]) == pytest.approx((1 / theirs["ratio_high"], 1 / theirs["ratio_low"]))


def test_a_label_whose_correction_was_not_timed_has_no_ratio(speed_record: Make) -> None:
    records = corrected(speed_record, "rewrite", 8, samples=[], status="oom", reason="too large")
    speed = speed_table(records, 0.95, 200)
    (row,) = derived.baselines_table(speed, derived.correction_table(speed)).to_dict("records")
    assert (row["label"], row["how"]) == ("quest_cc", "paired, correction not timed") and pd.isna(row["ratio"])


def test_records_come_back_from_parquet_as_they_were(tmp_path: Path, speed_record: Make) -> None:
    records = [
        speed_record([1.5, 2.5], [3.0, 4.0], disturbed=[1], sm_clock_mhz=(1, 2), launch={"op": {"warps": 4}}),
        speed_record(status="unsupported", reason="no such thing"),
    ]
    path = tmp_path / "results" / "speed" / "job.parquet"
    write_records(path, records, SpeedRecord)
    assert read_records(path, SpeedRecord) == records
