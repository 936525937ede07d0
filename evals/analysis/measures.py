"""Make measures.csv: what papers print that is neither a score nor a paired score, one row a quantity with interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.evals.analysis.cells import Cell, paired_units, scored_cells
from longdecode.evals.analysis.intervals import Floats, percentile_bootstrap
from longdecode.evals.analysis.pairs import PairRequest
from longdecode.evals.analysis.step_pairs import step_pairs
from longdecode.evals.analysis.texts import text_measures
from longdecode.evals.analysis.traces import head_losses, layer_overlaps, selection_traces, step_overlaps
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.stats import generator
from longdecode.evals.store import read_folder, read_records
from longdecode.evals.summary import Spread

COLUMNS = (
    "measure", "model", "variant", "over", "task", "context", "batch", "budget", "setting", "over_setting", "length",
    "at", "n", "value", "low", "high", "unit", "source",
)  # fmt: skip
_INTEGERS = ("context", "batch", "length", "at", "n")


def measures_table(
    folder: Path,
    records: Sequence[Record],
    requests: Sequence[PairRequest],
    pools: Mapping[str, Sequence[str]],
    spread: Spread,
) -> pd.DataFrame:
    """Return every measure that a results folder has the data of.

    ``setting`` tells timings of one variant apart (hit rate, prompts); ``length`` is the tokens of a whole text; ``at``
    counts tokens written, steps, slots or heads, as the measure has it.

    Args:
        folder: a run's results.
        records: its scored samples.
        requests: pairs of timed variants.
        pools: by name, tasks whose mean score is a measure.
        spread: confidence, bootstrap draws and seed.
    """
    rows = [*pooled_scores(records, pools, spread), *_rows(folder, requests, spread)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for name in _INTEGERS:
        frame[name] = frame[name].astype("Int64")
    return frame


def pooled_scores(
    records: Sequence[Record], pools: Mapping[str, Sequence[str]], spread: Spread
) -> Iterator[dict[str, Any]]:
    """Yield the mean score over the tasks of each pool, ``score``, for every variant that has them all."""
    groups: dict[Cell, dict[str, Floats]] = defaultdict(dict)
    for cell, samples in scored_cells(records).items():
        for name in (name for name, tasks in pools.items() if cell.task in tasks):
            groups[cell._replace(task=name)][cell.task] = 100 * paired_units(samples, samples)[0]
    for cell, tasks in groups.items():
        if len(tasks) == len(pools[cell.task]):
            rng = generator(spread.seed, "pool", *cell)
            mean = percentile_bootstrap(list(tasks.values()), spread.confidence, spread.resamples, rng)
            yield {
                "measure": "score", "model": cell.model, "variant": cell.variant, "task": cell.task,
                "context": cell.context, "batch": cell.batch, "budget": cell.budget, "value": mean.value,
                "n": sum(map(len, tasks.values())), "low": mean.low, "high": mean.high, "unit": "points",
                "source": "records",
            }  # fmt: skip


def _rows(folder: Path, requests: Sequence[PairRequest], spread: Spread) -> Iterator[dict[str, Any]]:
    yield from step_pairs(read_folder(folder / "speed", SpeedRecord), requests, spread)
    files = sorted((folder / "generation").glob("*.parquet"))
    yield from text_measures([read_records(file, Record) for file in files], spread)
    yield from step_overlaps(folder / "locality.csv", spread)
    yield from layer_overlaps(folder / "overlap.csv")
    yield from selection_traces(folder / "retrospection")
    yield from head_losses(folder / "heads")
