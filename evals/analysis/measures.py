"""Make measures.csv: what is quoted that is neither a score nor a paired score, one row a quantity with interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.analysis.cells import Cell, Cells, is_bounded, unit_scores
from longdecode.evals.analysis.comparisons import PairRequest
from longdecode.evals.analysis.steps import memory_bounds, step_pairs
from longdecode.evals.analysis.texts import text_measures
from longdecode.evals.analysis.traces import head_losses, layer_overlaps, selection_traces, step_overlaps
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.stats import Floats, Spread, bootstrap_interval, generator, mean_interval
from longdecode.evals.store import read_records

COLUMNS = (
    "measure", "model", "variant", "over", "task", "context", "batch", "budget", "setting", "over_setting", "length",
    "at", "n", "value", "low", "high", "unit", "source",
)  # fmt: skip
_INTEGERS = ("context", "batch", "length", "at", "n")
STRETCHES = 8
"""Most points of a curve along an answer or a text; one with fewer parts than this has none."""
CURVE_DRAWS = 2000
"""Bootstrap draws of a point; there are thousands of points, and no verdict hangs on one."""


def measures_table(
    folder: Path,
    cells: Cells,
    timed: Sequence[SpeedRecord],
    requests: Sequence[PairRequest],
    pools: Mapping[str, Sequence[str]],
    spread: Spread,
) -> pd.DataFrame:
    """Return every measure that a results folder has the data of.

    ``setting`` tells timings of one variant apart (hit rate, prompts); ``length`` is the tokens of a whole text, or the
    parts of an answer; ``at`` counts tokens written, parts, steps, slots or heads, as the measure has it.

    Args:
        folder: a run's results.
        cells: its scored samples.
        timed: its speed records.
        requests: pairs of timed variants.
        pools: by name, tasks whose mean score is a measure.
        spread: confidence, bootstrap draws and seed.
    """
    texts = [read_records(path, Record) for path in sorted((folder / "generation").glob("*.parquet"))]
    rows = [
        *_pooled_scores(cells, pools, spread),
        *_curves(cells, spread),
        *step_pairs(timed, requests, spread),
        *memory_bounds(timed),
        *text_measures(texts, spread),
        *step_overlaps(folder / "locality.csv", spread),
        *layer_overlaps(folder / "overlap.csv"),
        *selection_traces(folder / "retrospection"),
        *head_losses(folder / "heads"),
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(_INTEGERS, "Int64"))


def _pooled_scores(cells: Cells, pools: Mapping[str, Sequence[str]], spread: Spread) -> Iterator[dict[str, Any]]:
    """Yield the mean score over the tasks of each pool, ``score``, for every variant that has them all."""
    groups: dict[Cell, dict[str, Floats]] = defaultdict(dict)
    for cell, samples in cells.items():
        for name in (name for name, tasks in pools.items() if cell.task in tasks):
            scores = unit_scores(samples[number] for number in sorted(samples))
            groups[cell._replace(task=name)][cell.task] = 100 * scores
    for cell, tasks in groups.items():
        if len(tasks) == len(pools[cell.task]):
            mean = bootstrap_interval(list(tasks.values()), spread, generator(spread.seed, "pool", *cell))
            n = sum(map(len, tasks.values()))
            yield _of_cell(cell) | mean._asdict() | {"measure": "score", "n": n, "unit": "points"}


def _curves(cells: Cells, spread: Spread) -> Iterator[dict[str, Any]]:
    """Yield scores along long answers (``score_along``) and losses along long texts (``loss_along``).

    A curve has at most ``STRETCHES`` points: each is the mean over a stretch of parts (questions, segments), ``at`` its
    last part and ``length`` the parts of the whole. The unit is the problem.
    """
    for cell, samples in cells.items():
        first = next(iter(samples.values()))
        length = max(len(r.parts or ()) for r in samples.values())
        if length < STRETCHES:
            continue
        step, drawn = -(-length // STRETCHES), replace(spread, resamples=CURVE_DRAWS)
        scale, unit = (100.0, "points") if first.unit == "fraction" else (1.0, first.unit)
        for start in range(0, length, step):
            units: dict[object, list[float]] = defaultdict(list)
            for r in samples.values():
                units[r.problem] += (r.parts or [])[start : start + step]
            values = np.array([np.mean(parts) for parts in units.values() if parts])
            at = min(start + step, length)
            rng = generator(spread.seed, "along", *cell, at)
            found = mean_interval([values], is_bounded(samples.values()), drawn, rng)
            yield _of_cell(cell) | {name: scale * value for name, value in found._asdict().items()} | {
                "measure": "score_along" if first.higher_is_better else "loss_along", "length": length, "at": at,
                "n": len(values), "unit": unit,
            }  # fmt: skip


def _of_cell(cell: Cell) -> dict[str, Any]:
    """Return the columns that say of which cell a measure is."""
    return {name: value for name, value in cell._asdict().items() if name != "suite"} | {"source": "records"}
