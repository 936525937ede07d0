"""From speed records to speed.csv and its companions: growth, breakeven, breakdown, correction, over_baselines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.evals.manifest import require, seal
from longdecode.evals.records import SpeedRecord, op_sizes_text
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import read_records, results_root, write_table
from longdecode.evals.throughput import statistics
from longdecode.evals.throughput.derived import (
    baselines_table,
    breakdown_table,
    breakeven_table,
    correction_table,
    growth_table,
)
from longdecode.evals.throughput.speculation import speculation_table

COLUMNS = (
    "bench", "model", "weights", "subject", "label", "params", "stage", "context", "batch", "budget", "budget_tokens",
    "op_sizes", "status", "reason", "n", "disturbed", "median_us", "p5_us", "p95_us", "reference", "ratio",
    "ratio_low", "ratio_high", "bytes_min", "floor_us", "fraction", "gb_per_s", "tokens_per_s", "expected_bytes",
    "peak_bytes", "sm_clock_low_mhz", "sm_clock_high_mhz", "device", "revision",
)  # fmt: skip
_INTEGERS = (
    "context", "batch", "budget_tokens", "n", "disturbed", "bytes_min", "expected_bytes", "peak_bytes",
    "sm_clock_low_mhz", "sm_clock_high_mhz",
)  # fmt: skip
_PER_TOKEN_STAGES = ("step", "no_selection", "no_attention")
_SHOWN = (
    "subject",
    "label",
    "stage",
    "context",
    "batch",
    "budget",
    "op_sizes",
    "median_us",
    "ratio",
    "fraction",
    "gb_per_s",
)


def write_speed_summary(records: Sequence[Path], output: Path, run: RunConfig) -> None:
    """Write ``speed.csv`` to ``output`` and the tables made from it beside it, each file whole or not at all.

    Args:
        records: parquet files of speed records, ``speed/<job>.parquet`` beside ``output``.
        output: where ``speed.csv`` goes.
        run: for confidence, resamples and seed.

    Raises:
        ManifestError: a file changed since it was written, or is missing.
        RecordSchemaError: a file is not of this schema.
    """
    require(results_root(records[0]), records)
    rows = [record for path in sorted(records) for record in read_records(path, SpeedRecord)]
    speed = speed_table(rows, run.confidence, run.bootstrap_resamples)
    correction = correction_table(speed)
    tables = {
        "growth": growth_table(speed, run.confidence),
        "breakeven": breakeven_table(speed),
        "breakdown": breakdown_table(speed),
        "correction": correction,
        "speculation": speculation_table(speed),
        "over_baselines": baselines_table(speed, correction),
    }
    write_table(output, speed)
    for name, table in tables.items():
        write_table(output.with_name(f"{name}.csv"), table)
    seal(output.parent, [output, *(output.with_name(f"{name}.csv") for name in tables)])


def speed_table(records: Iterable[SpeedRecord], confidence: float, resamples: int) -> pd.DataFrame:
    """One row a record: medians, intervals of the ratio, floors from the best read rate seen on the same device.

    Launch settings stay in the records, where they are half of all bytes.
    Disturbed samples are counted and left out of every statistic.
    """
    found = list(records)
    ceilings = read_ceilings(found)
    rows = [_row(record, ceilings, confidence, resamples) for record in found]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for name in _INTEGERS:
        frame[name] = frame[name].astype("Int64")
    return frame


def read_ceilings(records: Iterable[SpeedRecord]) -> dict[str, float]:
    """The best read rate that any probe reached on each device, in bytes a microsecond."""
    best: dict[str, float] = {}
    for record in records:
        if record.bench == "ceiling" and record.status == "ok" and record.bytes_min:
            times = [us for us, _ in statistics.good_times(record.samples)]
            if times:
                rate = record.bytes_min / statistics.median(times)
                device = record.provenance.device
                best[device] = max(rate, best.get(device, 0.0))
    return best


def summary_table(records: Sequence[SpeedRecord], run: RunConfig) -> str:
    """The main columns of some records as text, for a terminal."""
    if not records:
        return "nothing was timed"
    frame = speed_table(records, run.confidence, run.bootstrap_resamples)
    shown = [name for name in _SHOWN if name != "op_sizes" or frame[name].notna().any()]
    return str(frame[shown].to_string(index=False, float_format=lambda value: f"{value:,.3f}", na_rep=""))


def _row(record: SpeedRecord, ceilings: dict[str, float], confidence: float, resamples: int) -> dict[str, Any]:
    times = statistics.good_times(record.samples)
    us = statistics.spread([time for time, _ in times])
    ratios = [reference / time for time, reference in times if reference is not None]
    identity = (record.seed, *(part for part in record.key if part is not None))
    ratio = statistics.median_ratio(ratios, confidence, resamples, identity)
    timed = len(times) > 0
    ceiling = ceilings.get(record.provenance.device)
    floor = record.bytes_min / ceiling if record.bytes_min and ceiling else None
    clocks = record.sm_clock_mhz or (None, None)
    return {
        "bench": record.bench,
        "model": record.model,
        "weights": record.weights,
        "subject": record.method,
        "label": record.variant,
        "params": json.dumps(record.params, sort_keys=True),
        "stage": record.stage,
        "context": record.context,
        "batch": record.batch,
        "budget": record.budget,
        "budget_tokens": record.budget_tokens,
        "op_sizes": op_sizes_text(record.bench, record.params),
        "status": record.status,
        "reason": record.reason,
        "n": len(times),
        "disturbed": len(record.samples) - len(times),
        "median_us": us.value,
        "p5_us": us.low,
        "p95_us": us.high,
        "reference": record.reference,
        "ratio": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "bytes_min": record.bytes_min,
        "floor_us": floor,
        "fraction": floor / us.value if floor and timed else None,
        "gb_per_s": record.bytes_min / us.value * 1e-3 if record.bytes_min and timed else None,
        "tokens_per_s": _tokens(record) / us.value * 1e6 if _tokens(record) and timed else None,
        "expected_bytes": record.expected_bytes,
        "peak_bytes": record.peak_bytes,
        "sm_clock_low_mhz": clocks[0],
        "sm_clock_high_mhz": clocks[1],
        "device": record.provenance.device,
        "revision": record.provenance.short_revision,
    }


def _tokens(record: SpeedRecord) -> int:
    """Tokens that one timed call handles; 0 where that is not what is timed."""
    if record.bench in ("offload", "own_choices"):
        return 1
    if record.bench != "decode":
        return 0
    if record.stage == "prefill":
        return record.batch * record.context
    return record.batch if record.stage in _PER_TOKEN_STAGES else 0
