"""Make speed.csv, one row a time; ``python -m longdecode.analysis.speed`` measures by hand and prints it.

By hand all cells are timed or some, without Snakemake.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from longdecode.engine.errors import LongDecodeError
from longdecode.evals import stats
from longdecode.evals.records import SpeedRecord, op_sizes_text
from longdecode.evals.run_config import load_run_config
from longdecode.evals.stats import Floats, Interval, Spread, generator
from longdecode.evals.throughput.spec import OPS, jobs_of

if TYPE_CHECKING:
    from longdecode.evals.throughput.harness import SpeedCell

SPEED_COLUMNS = (
    "bench", "model", "weights", "method", "variant", "params", "stage", "context", "batch", "budget", "budget_tokens",
    "op_sizes", "status", "reason", "n", "disturbed", "median_us", "p5_us", "p95_us", "reference", "ratio",
    "ratio_low", "ratio_high", "bytes_min", "floor_us", "fraction", "gb_per_s", "tokens_per_s", "expected_bytes",
    "peak_bytes", "sm_clock_low_mhz", "sm_clock_high_mhz", "device", "revision",
)  # fmt: skip
_SPEED_INTEGERS = (
    "context", "batch", "budget_tokens", "n", "disturbed", "bytes_min", "expected_bytes", "peak_bytes",
    "sm_clock_low_mhz", "sm_clock_high_mhz",
)  # fmt: skip
_PER_TOKEN_STAGES = ("step", "no_selection", "no_attention")
_PER_TOKEN_BENCHES = ("offload", "own_choices")
_FILTERS = {"jobs": "kernels, models, ... (default: all)", "variants": f"variants, methods or ops: {', '.join(OPS)}"}
_FILTERS |= dict.fromkeys(("stages", "contexts", "batches", "budgets"), "as tables print them")
_SHOWN = ["method", "variant", "stage", "context", "batch", "budget", "op_sizes", "median_us", "ratio"]
_SHOWN += ["fraction", "gb_per_s"]


def speed_table(records: Iterable[SpeedRecord], spread: Spread) -> pd.DataFrame:
    """Return speed.csv: medians, intervals of the ratio, and floors from the best read rate seen on the same device.

    Disturbed samples are counted and left out of every statistic.
    """
    found, bandwidths = list(records), defaultdict[str, float](float)
    for r in found:
        if r.bench == "ceiling" and r.bytes_min and len(times := clean_times(r)):
            rate = r.bytes_min / float(np.median(times))  # bytes a microsecond
            bandwidths[r.provenance.device] = max(rate, bandwidths[r.provenance.device])
    rows = [_speed_row(r, bandwidths[r.provenance.device], spread) for r in found]
    return pd.DataFrame(rows, columns=list(SPEED_COLUMNS)).astype(dict.fromkeys(_SPEED_INTEGERS, "Int64"))


def _speed_row(record: SpeedRecord, bandwidth: float, spread: Spread) -> dict[str, Any]:
    us, ratio = median_spread(clean_times(record)), ratio_interval(record, spread)
    n, read, tokens = len(clean_times(record)), record.bytes_min, _tokens(record)
    floor = read / bandwidth if read and bandwidth else None
    low, high = record.sm_clock_mhz or (None, None)
    return record.model_dump(include=set(SPEED_COLUMNS)) | {
        "params": json.dumps(record.params, sort_keys=True), "op_sizes": op_sizes_text(record.bench, record.params),
        "n": n, "disturbed": len(record.samples) - n, "median_us": us.value, "p5_us": us.low, "p95_us": us.high,
        "ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "floor_us": floor,
        "fraction": floor and floor / us.value, "gb_per_s": read and read / us.value * 1e-3,
        "tokens_per_s": tokens and tokens / us.value * 1e6, "sm_clock_low_mhz": low, "sm_clock_high_mhz": high,
        "device": record.provenance.device, "revision": record.provenance.short_revision,
    }  # fmt: skip


def _tokens(record: SpeedRecord) -> int | None:
    """Return the tokens that one timed call handles; ``None`` where that is not what is timed."""
    if record.bench in _PER_TOKEN_BENCHES:
        return 1
    handled = dict.fromkeys(_PER_TOKEN_STAGES, record.batch) | {"prefill": record.batch * record.context}
    return handled.get(record.stage) if record.bench == "decode" else None


def clean_times(record: SpeedRecord) -> Floats:
    """Return the microseconds of the samples that nothing disturbed."""
    return np.array([sample.us for sample in record.clean])


def clean_ratios(record: SpeedRecord) -> Floats:
    """Return the reference's time over the record's, of the samples that nothing disturbed and that have both."""
    return np.array([sample.reference_us / sample.us for sample in record.clean if sample.reference_us is not None])


def median_spread(values: Floats) -> Interval:
    """Return the median with the 5th and 95th percentile (linear interpolation); NaN of nothing."""
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95]) if len(values) else (math.nan,) * 3
    return Interval(float(middle), float(low), float(high))


def ratio_interval(record: SpeedRecord, spread: Spread) -> Interval:
    """Return the median ratio over the reference with its interval; the draw depends on the cell alone."""
    if not len(ratios := clean_ratios(record)):
        return Interval()
    identity = (record.seed, *(part for part in record.key if part is not None))
    return stats.bootstrap_interval([ratios], spread, generator("speed", *identity), np.median)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the jobs asked for, print a line a record and a table at the end."""
    from longdecode.evals.throughput.measure import measure_speed  # tables alone need no model

    asked = parser().parse_args(arguments)

    def chosen(cell: SpeedCell) -> bool:
        mine: dict[str, set[str]] = {
            "variants": {cell.method, cell.variant}, "stages": {cell.stage}, "contexts": {str(cell.context)},
            "batches": {str(cell.batch)}, "budgets": {cell.budget.text},
        }  # fmt: skip
        return all(not (wanted := getattr(asked, name)) or values & {*wanted} for name, values in mine.items())

    try:
        run = load_run_config(asked.config)
        folder, fresh = asked.output or Path("results") / run.profile / "speed", []
        for name in asked.jobs or jobs_of(run.throughput):
            fresh += measure_speed(run, name, folder / f"{name}.parquet", choose=chosen)
        table = speed_table(fresh, Spread())[_SHOWN].dropna(axis=1, how="all")
        print(table.to_string(index=False, float_format="{:,.3f}".format, na_rep="") if fresh else "nothing was timed")
    except LongDecodeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python -m longdecode.analysis.speed", description=__doc__)
    found.add_argument("--config", type=Path, default=Path("config/h200.yaml"), help="a configuration file")
    found.add_argument("--output", type=Path, help="folder of the parquet files (default: results/<profile>/speed)")
    for name, about in _FILTERS.items():
        found.add_argument(f"--{name}", nargs="+", help=about)
    return found


if __name__ == "__main__":
    main()
