"""Group records into cells; make summary.csv, one row a cell and one for a suite's mean, and speed.csv, one row a time.

Tasks that full attention itself cannot do are told here; they take part in no mean and no verdict.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from longdecode.engine.errors import LongDecodeError
from longdecode.evals import stats
from longdecode.evals.records import Record, SpeedRecord, op_sizes_text
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Floats, Interval, Spread, generator

TaskStatus = Literal["ok", "baseline_fails", "short", "low_ceiling"]

ALL_TASKS = "all"
"""The task of a row that holds the mean over a suite's tasks."""

WINDOW_METHOD = "streaming"
NEARLY_ALL = 0.9
"""A window that reads this share of what Full reads holds prompt and answer: the task tests no selection."""
LOW_CEILING = 0.5
"""Below this share of right answers, Full leaves little to lose."""

COLUMNS = (
    "suite", "task", "metric", "model", "method", "variant", "params", "budget", "budget_tokens", "context", "batch",
    "n", "value", "low", "high", "unit", "status", "device", "revision", "data_source", "kv_tokens_read",
    "kv_tokens_read_sparse", "kv_bytes_per_step", "metadata_bytes_per_step", "n_timeout", "truncated",
)  # fmt: skip
"""Columns of every summary; each further measure of the records, times aside, has a column after these."""
_INTEGERS = ("budget_tokens", "context", "batch", "n", "n_timeout")


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


class CellError(LongDecodeError):
    """Records that cannot stand together: a sample twice, or one sample with two prompts."""


class Cell(NamedTuple):
    """One variant at one budget on one task: what a row of summary.csv is about."""

    model: str
    suite: str
    task: str
    context: int
    batch: int
    variant: str
    budget: str


Samples = Mapping[tuple[int, int], Record]
"""Records of one cell by seed and number of the sample."""
Cells = Mapping[Cell, Samples]


def all_cells(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """Return the records of every cell, samples in order.

    Raises:
        CellError: a sample is there twice.
    """
    found: dict[Cell, list[Record]] = defaultdict(list)
    for r in records:
        found[Cell(r.model, r.suite, r.task, r.context, r.batch, r.variant, r.budget)].append(r)
    for cell, rows in found.items():
        rows.sort(key=sample_of)
        seen = [sample_of(r) for r in rows if r.sample_index >= 0]
        if len(set(seen)) < len(seen):
            raise CellError(f"{cell}: a sample is there twice")
    return found


def sample_of(record: Record) -> tuple[int, int]:
    """Return seed and number of a sample."""
    return record.seed, record.sample_index


def status_of(found: Sequence[Record]) -> str:
    """Return one status for a cell; a sample that was not scored in time does not fail it while others have a score."""
    failed = next((r.status for r in found if r.status != "ok" and not is_unscored(r)), None)
    return failed or ("ok" if any(r.status == "ok" for r in found) else "timeout" if found else "unsupported")


def is_unscored(record: Record) -> bool:
    """Return whether a sample could not be scored in time."""
    return record.status == "timeout" and record.sample_index >= 0


def scored_cells(cells: Mapping[Cell, Sequence[Record]]) -> dict[Cell, Samples]:
    """Return the scored samples of the cells whose status is ``ok``."""
    return {
        cell: {sample_of(r): r for r in found if r.status == "ok"}
        for cell, found in cells.items()
        if status_of(found) == "ok"
    }


def unit_scores(found: Iterable[Record]) -> Floats:
    """Return the scores of a cell by unit, ``[units]``: the mean over a problem's samples."""
    units: dict[object, list[float]] = defaultdict(list)
    for r in found:
        units[r.problem].append(float(r.score or 0.0))
    return np.array([np.mean(scores) if len(scores) > 1 else scores[0] for scores in units.values()])


def paired_units(ours: Samples, theirs: Samples) -> tuple[Floats, Floats]:
    """Return both sides' scores by unit, ``[units]`` each, over the samples that both have scored.

    Raises:
        CellError: a sample has one prompt on one side and another on the other.
    """
    shared = sorted(ours.keys() & theirs.keys())
    for sample in shared:
        a, b = ours[sample], theirs[sample]
        if a.prompt_sha256 != b.prompt_sha256:
            raise CellError(
                f"{a.model}/{a.variant} and {b.model}/{b.variant}, {a.task} at {a.context}: sample {sample[1]} of seed "
                f"{sample[0]} has another prompt on each side; both must be scored on the same prompts"
            )
    return unit_scores(ours[s] for s in shared), unit_scores(theirs[s] for s in shared)


def is_bounded(found: Iterable[Record]) -> bool:
    """Return whether scores are shares in [0, 1], where higher is better."""
    return all(r.higher_is_better and r.unit == "fraction" for r in found)


def method_of(samples: Samples) -> str:
    """Return the registered method of a cell's variant."""
    return next(iter(samples.values())).method


def require_alike(records: Iterable[Record]) -> None:
    """Refuse records of one model that were scored with different weights.

    Raises:
        CellError: the message names two of them.
    """
    first: dict[str, Record] = {}
    for r in records:
        other = first.setdefault(r.model, r)
        if r.status == other.status == "ok" and r.provenance.model_hash != other.provenance.model_hash:
            raise CellError(f"{r.model}/{r.variant}, {r.task}: other weights than {other.variant}'s, {other.task}")


def task_statuses(cells: Cells, spread: Spread) -> dict[tuple[Any, ...], TaskStatus]:
    """Return the status of each task by model, suite, task, context and batch.

    It comes from full attention and the window that read least.
    """
    windows = [cell for cell, samples in cells.items() if method_of(samples) == WINDOW_METHOD]
    found: dict[tuple[Any, ...], TaskStatus] = {}
    for cell, full in cells.items():
        if method_of(full) == REFERENCE_METHOD:
            window = min((cells[w] for w in windows if w[:5] == cell[:5]), key=_tokens_read, default=None)
            found[cell[:5]] = task_status(full, window, spread, generator(spread.seed, "status", *cell))
    return found


def task_status(full: Samples, window: Samples | None, spread: Spread, rng: np.random.Generator) -> TaskStatus:
    """Return whether a task says something of methods that read less than full attention.

    ``baseline_fails``: Full is not shown to be better than a window of the smallest budget (the interval of their
    paired difference reaches 0). ``short``: that window reads nearly all; never called a failure. ``low_ceiling``:
    Full is better, but below half right. Without a window the first two cannot be told.

    Args:
        full: samples of full attention.
        window: samples of the sliding window that read least on the same task, if one ran.
        spread: of the interval.
        rng: draws it.
    """
    bounded = is_bounded(full.values())
    if window is not None:
        if _tokens_read(window) >= NEARLY_ALL * _tokens_read(full):
            return "short"
        ours, theirs = paired_units(full, window)
        better = 1 if next(iter(full.values())).higher_is_better else -1
        if not stats.paired_interval([better * (ours - theirs)], bounded, spread, rng).low > 0:
            return "baseline_fails"
    mean = float(np.mean([r.score for r in full.values()]))
    return "low_ceiling" if bounded and mean < LOW_CEILING else "ok"


def _tokens_read(samples: Samples) -> float:
    """Return the mean tokens that a step reads per KV head; NaN where no sample says so."""
    read = [r.measures["kv_tokens_read"] for r in samples.values() if "kv_tokens_read" in r.measures]
    return float(np.mean(read)) if read else float("nan")


def summary_table(cells: Mapping[Cell, Sequence[Record]], spread: Spread) -> pd.DataFrame:
    """Return one row a cell; a cell with any status but ``ok`` keeps its row, its value left empty.

    Samples that could not be scored in time (``n_timeout`` of them) are neither right nor wrong: the value is the mean
    over the others. ``truncated`` is the share of generations that the context cut off, empty for tasks that wait for
    no end-of-sequence token.

    A suite's mean is over the tasks that Full could do at that context; a variant that lacks one of them has no value
    there, because a mean over fewer tasks is not comparable.
    """
    rows = [_summary_row(cell, [cells[cell]], spread) for cell in sorted(cells, key=_table_order)]
    suites: dict[Cell, dict[str, Sequence[Record]]] = defaultdict(dict)
    for cell, found in cells.items():
        suites[cell._replace(task=ALL_TASKS)][cell.task] = found
    wanted = _suite_tasks(cells)
    for cell in sorted(suites, key=_table_order):
        names = wanted.get(_place(cell), set())
        members = [suites[cell].get(name, []) for name in sorted(names)]
        if len(names) > 1 and len({(r.unit, r.higher_is_better) for found in members for r in found}) == 1:
            rows.append(_summary_row(cell, members, spread))
    more = sorted({name for row in rows for name in row} - set(COLUMNS))
    return pd.DataFrame(rows, columns=[*COLUMNS, *more]).astype(dict.fromkeys(_INTEGERS, "Int64"))


def _place(cell: Cell) -> tuple[object, ...]:
    return cell.model, cell.suite, cell.context, cell.batch


def _suite_tasks(cells: Mapping[Cell, Sequence[Record]]) -> dict[tuple[object, ...], set[str]]:
    """Return the tasks of each suite's mean by place: those that ran under Full, or at all where Full is absent."""
    ran, under_full = (defaultdict[tuple[object, ...], set[str]](set) for _ in range(2))
    for cell, found in cells.items():
        if status_of(found) == "ok":
            ran[_place(cell)].add(cell.task)
            if found[0].method == REFERENCE_METHOD:
                under_full[_place(cell)].add(cell.task)
    return ran | under_full


def _table_order(cell: Cell) -> tuple[Any, ...]:
    size = -1.0 if cell.budget == "full" else float(cell.budget.removeprefix("bytes="))
    return cell.model, cell.suite, cell.task, cell.context, cell.batch, size, cell.variant


def _summary_row(cell: Cell, members: Sequence[Sequence[Record]], spread: Spread) -> dict[str, Any]:
    """Return the row of one cell, or of the mean over several."""
    records = [r for found in members for r in found]
    first, metrics = records[0], sorted({r.metric for r in records})
    status = next((status for found in members if (status := status_of(found)) != "ok"), "ok")
    names = sorted({name for r in records for name in r.measures if not name.endswith("_ms")})
    row: dict[str, Any] = cell._asdict() | {
        "method": first.method, "params": json.dumps(first.params, sort_keys=True), "unit": first.unit,
        "metric": metrics[0] if len(metrics) == 1 else f"mean of {', '.join(metrics)}", "status": status,
        "budget_tokens": first.budget_tokens, "n": sum(r.status == "ok" for r in records),
        "n_timeout": sum(map(is_unscored, records)),
        "device": _joined(r.provenance.device for r in records),
        "revision": _joined(r.provenance.short_revision for r in records),
        "data_source": _joined(r.data_source for r in records),
        **{name: _mean(_mean(r.measures.get(name) for r in found) for found in members) for name in names},
    }  # fmt: skip
    if status == "ok":
        groups = [unit_scores(r for r in found if r.status == "ok") for found in members]
        interval = stats.mean_interval(groups, is_bounded(records), spread, generator(spread.seed, "mean", *cell))
        # A problem's repeated samples are one unit of the interval, but each counts in the mean that others print.
        value = float(np.mean([np.mean([r.score for r in found if r.status == "ok"]) for found in members]))
        row |= {"value": value, "low": interval.low, "high": interval.high}
    return row


def _joined(values: Iterable[str]) -> str:
    return "; ".join(sorted(set(values)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


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


def of_medians(compare: np.ufunc) -> Callable[..., Floats]:
    """Return the statistic that compares the medians of two groups."""
    return lambda ours, theirs, axis=-1: compare(np.median(ours, axis=axis), np.median(theirs, axis=axis))
