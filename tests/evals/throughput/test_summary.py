"""speed.csv from records made by hand and from those of committed runs; statistics by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.analysis import cells as summary
from longdecode.analysis.cells import SPEED_COLUMNS, speed_table
from longdecode.evals.records import SpeedRecord
from longdecode.evals.stats import Spread
from longdecode.evals.store import read_folder

ROOT = Path(__file__).parents[3]
NUMBERS = {
    "budget_tokens", "n", "disturbed", "median_us", "p5_us", "p95_us", "ratio", "ratio_low", "ratio_high", "bytes_min",
    "floor_us", "fraction", "gb_per_s", "tokens_per_s", "expected_bytes", "peak_bytes", "sm_clock_low_mhz",
    "sm_clock_high_mhz",
}  # fmt: skip
Make = Callable[..., SpeedRecord]


def row_of(records: list[SpeedRecord], index: int = 0) -> dict[str, Any]:
    return speed_table(records, Spread(0.95, 200, 0)).iloc[index].to_dict()


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
    assert row["fraction"] == pytest.approx(0.5) and row["gb_per_s"] == pytest.approx(2.0)
    assert row["tokens_per_s"] == pytest.approx(4 / 250e-6)
    assert (row["sm_clock_low_mhz"], row["sm_clock_high_mhz"], row["peak_bytes"]) == (1900, 1980, 7)
    assert tuple(row) == SPEED_COLUMNS


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
    assert (row["status"], row["reason"], row["n"]) == ("oom", "too large", 0) and pd.isna(row["median_us"])


def test_prefill_counts_every_token(speed_record: Make) -> None:
    assert row_of([speed_record([1e6], stage="prefill", context=2048, batch=2)])["tokens_per_s"] == 4096
    assert pd.isna(row_of([speed_record([1e6], stage="setup")])["tokens_per_s"])


def test_an_ops_own_sizes_stand_in_the_table(speed_record: Make) -> None:
    fields = {"bench": "kernel", "method": "hybrid_attention", "variant": "longdecode", "stage": "op", "budget": "0.1"}
    records = [speed_record([10.0], params={"full_heads": heads}, **fields) for heads in (1, 8)]
    assert speed_table(records, Spread(0.95, 200, 0))["op_sizes"].tolist() == ["full_heads=1", "full_heads=8"]


@pytest.mark.parametrize("folder", [ROOT / "results" / name for name in ("qwen", "retro")], ids=lambda path: path.name)
def test_stored_records_give_the_committed_table(folder: Path) -> None:
    """Frozen before the benchmarks were put on one harness: no number of a committed run may change."""
    frozen = pd.read_csv(folder / "speed.csv")
    table = speed_table(read_folder(folder / "speed", SpeedRecord), Spread())
    key = ["bench", "model", "method", "variant", "params", "stage", "context", "batch", "budget"]
    both = frozen.merge(table.reset_index(drop=True), on=key, how="outer", suffixes=("", "_now"), indicator=True)
    assert (both["_merge"] == "both").all() and len(both) == len(frozen) == len(table)
    for name in SPEED_COLUMNS:
        if name in key:
            continue
        then, now = both[name], both[f"{name}_now"]
        if name in NUMBERS:
            assert np.allclose(then.astype(float), now.astype(float), rtol=1e-5, equal_nan=True), name
        else:
            assert (then.astype(object).fillna("") == now.astype(object).fillna("")).all(), name


def test_spread_is_median_and_percentiles() -> None:
    found = summary.median_spread(np.arange(1.0, 22.0))
    assert (found.value, found.low, found.high) == (11.0, 2.0, 20.0)
    assert math.isnan(summary.median_spread(np.array([])).value)


def test_the_ratio_interval_covers_a_known_median(speed_record: Make, seed: int) -> None:
    rng, covered = np.random.default_rng(seed), 0
    for trial in range(200):
        record = speed_record([1.0] * 15, np.exp(rng.normal(math.log(1.5), 0.1, size=15)).tolist(), context=trial + 1)
        found = summary.ratio_interval(record, Spread(0.95, 400, 0))
        assert found == summary.ratio_interval(record, Spread(0.95, 400, 1)), "the draw depends on the cell alone"
        covered += found.low <= 1.5 <= found.high
    assert covered >= 170  # 95 % nominal; a bootstrap of a median over 15 values comes out a little short
    point = summary.ratio_interval(speed_record([1.0] * 5, [2.0] * 5), Spread(0.95, 400, 0))
    assert (point.value, point.low, point.high) == (2.0, 2.0, 2.0)
