"""From speed records to speed.csv: one row a record, whatever was timed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.records import SpeedRecord, SpeedSample, op_sizes_text
from longdecode.evals.stats import Interval, generator

COLUMNS = (
    "bench", "model", "weights", "method", "variant", "params", "stage", "context", "batch", "budget", "budget_tokens",
    "op_sizes", "status", "reason", "n", "disturbed", "median_us", "p5_us", "p95_us", "reference", "ratio",
    "ratio_low", "ratio_high", "bytes_min", "floor_us", "fraction", "gb_per_s", "tokens_per_s", "expected_bytes",
    "peak_bytes", "sm_clock_low_mhz", "sm_clock_high_mhz", "device", "revision",
)  # fmt: skip
_INTEGERS = (
    "context", "batch", "budget_tokens", "n", "disturbed", "bytes_min", "expected_bytes", "peak_bytes",
    "sm_clock_low_mhz", "sm_clock_high_mhz",
)  # fmt: skip
_PER_TOKEN_STAGES = ("step", "no_selection", "no_attention")
_PER_TOKEN_BENCHES = ("offload", "own_choices")
_SHOWN = [
    "method", "variant", "stage", "context", "batch", "budget", "op_sizes", "median_us", "ratio", "fraction",
    "gb_per_s",
]  # fmt: skip


def speed_table(records: Iterable[SpeedRecord], confidence: float = 0.95, resamples: int = 10_000) -> pd.DataFrame:
    """Return speed.csv: medians, intervals of the ratio, and floors from the best read rate seen on the same device.

    Disturbed samples are counted and left out of every statistic.
    """
    found = list(records)
    bandwidths = read_bandwidths(found)
    frame = pd.DataFrame([_row(r, bandwidths, confidence, resamples) for r in found], columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(_INTEGERS, "Int64"))


def read_bandwidths(records: Iterable[SpeedRecord]) -> dict[str, float]:
    """Return the best read rate that any probe reached on each device, in bytes a microsecond."""
    best: dict[str, float] = {}
    for record in records:
        times = [us for us, _ in good_times(record.samples)]
        if record.bench == "ceiling" and record.bytes_min and times:
            device = record.provenance.device
            best[device] = max(record.bytes_min / median(times), best.get(device, 0.0))
    return best


def shown(table: pd.DataFrame) -> str:
    """Return the main columns as text, for a terminal."""
    if table.empty:
        return "nothing was timed"
    main = table[_SHOWN].dropna(axis=1, how="all")
    return str(main.to_string(index=False, float_format=lambda value: f"{value:,.3f}", na_rep=""))


def _row(record: SpeedRecord, bandwidths: dict[str, float], confidence: float, resamples: int) -> dict[str, Any]:
    times = good_times(record.samples)
    us = spread([time for time, _ in times])
    ratios = [reference / time for time, reference in times if reference is not None]
    identity = (record.seed, *(part for part in record.key if part is not None))
    ratio = median_ratio(ratios, confidence, resamples, identity)
    bandwidth = bandwidths.get(record.provenance.device)
    floor = record.bytes_min / bandwidth if record.bytes_min and bandwidth else None
    low, high = record.sm_clock_mhz or (None, None)
    tokens = _tokens(record)
    row = record.model_dump(include=set(COLUMNS)) | {
        "params": json.dumps(record.params, sort_keys=True), "op_sizes": op_sizes_text(record.bench, record.params),
        "n": len(times), "disturbed": len(record.samples) - len(times), "median_us": us.value, "p5_us": us.low,
        "p95_us": us.high, "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "floor_us": floor,
        "sm_clock_low_mhz": low, "sm_clock_high_mhz": high, "device": record.provenance.device,
        "revision": record.provenance.short_revision,
    }  # fmt: skip
    if times:
        row["fraction"] = floor / us.value if floor else None
        row["gb_per_s"] = record.bytes_min / us.value * 1e-3 if record.bytes_min else None
        row["tokens_per_s"] = tokens / us.value * 1e6 if tokens else None
    return row


def _tokens(record: SpeedRecord) -> int:
    """Return the tokens that one timed call handles; 0 where that is not what is timed."""
    if record.bench in _PER_TOKEN_BENCHES:
        return 1
    if record.bench != "decode":
        return 0
    if record.stage == "prefill":
        return record.batch * record.context
    return record.batch if record.stage in _PER_TOKEN_STAGES else 0


def good_times(samples: Sequence[SpeedSample]) -> list[tuple[float, float | None]]:
    """Return the times of the samples that nothing disturbed, each beside the reference's."""
    return [(sample.us, sample.reference_us) for sample in samples if sample.disturbed is None]


def median(values: Sequence[float]) -> float:
    """Return the median; NaN of nothing."""
    return float(np.median(values)) if len(values) else math.nan


def spread(values: Sequence[float]) -> Interval:
    """Return the median with the 5th and 95th percentile (linear interpolation); NaN of nothing."""
    if not len(values):
        return Interval()
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return Interval(float(middle), float(low), float(high))


def median_ratio(ratios: Sequence[float], confidence: float, resamples: int, identity: Sequence[object]) -> Interval:
    """Return the median of per-sample ratios with a percentile bootstrap interval; the draw depends on ``identity``.

    Source: Efron and Tibshirani 1993, section 13.3 (percentile interval).
    """
    if not len(ratios):
        return Interval()
    values = np.asarray(ratios, dtype=np.float64)
    drawn = generator("speed", *identity).integers(len(values), size=(resamples, len(values)))
    medians = np.median(values[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.median(values)), float(low), float(high))
