"""Make summary.csv: one row a cell, and one, named ``all``, for the mean over the tasks of its suite."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.analysis.cells import ALL_TASKS, Cell, is_bounded, is_unscored, status_of, unit_scores
from longdecode.evals.budgets import bytes_share
from longdecode.evals.records import Record
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Spread, generator, mean_interval

COLUMNS = (
    "suite", "task", "metric", "model", "method", "variant", "params", "budget", "budget_tokens", "context", "batch",
    "n", "value", "low", "high", "unit", "status", "device", "revision", "data_source", "kv_tokens_read",
    "kv_tokens_read_sparse", "kv_bytes_per_step", "metadata_bytes_per_step", "n_timeout", "truncated",
)  # fmt: skip
"""Columns of every summary; each further measure of the records, times aside, has a column after these."""
_INTEGERS = ("budget_tokens", "context", "batch", "n", "n_timeout")


def summary_table(cells: Mapping[Cell, Sequence[Record]], spread: Spread) -> pd.DataFrame:
    """Return one row a cell; a cell with any status but ``ok`` keeps its row, its value left empty.

    Samples that could not be scored in time (``n_timeout`` of them) are neither right nor wrong: the value is the mean
    over the others. ``truncated`` is the share of generations that the context cut off, empty for tasks that wait for
    no end-of-sequence token.

    A suite's mean is over the tasks that Full could do at that context; a variant that lacks one of them has no value
    there, because a mean over fewer tasks is not comparable.
    """
    rows = [_row(cell, [cells[cell]], spread) for cell in sorted(cells, key=_table_order)]
    suites: dict[Cell, dict[str, Sequence[Record]]] = defaultdict(dict)
    for cell, found in cells.items():
        suites[cell._replace(task=ALL_TASKS)][cell.task] = found
    wanted = _suite_tasks(cells)
    for cell in sorted(suites, key=_table_order):
        names = wanted.get(_place(cell), set())
        members = [suites[cell].get(name, []) for name in sorted(names)]
        if len(names) > 1 and len({(r.unit, r.higher_is_better) for found in members for r in found}) == 1:
            rows.append(_row(cell, members, spread))
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
    try:
        size = bytes_share(cell.budget) or float(cell.budget)
    except ValueError:
        size = -1.0
    return cell.model, cell.suite, cell.task, cell.context, cell.batch, size, cell.variant


def _row(cell: Cell, members: Sequence[Sequence[Record]], spread: Spread) -> dict[str, Any]:
    """Return the row of one cell, or of the mean over several."""
    records = [r for found in members for r in found]
    first, metrics = records[0], sorted({r.metric for r in records})
    status = next((status for found in members if (status := status_of(found)) != "ok"), "ok")
    names = sorted({name for r in records for name in r.measures if not name.endswith("_ms")})
    row: dict[str, Any] = {
        "suite": cell.suite, "task": cell.task, "model": cell.model, "method": first.method, "variant": cell.variant,
        "metric": metrics[0] if len(metrics) == 1 else f"mean of {', '.join(metrics)}",
        "params": json.dumps(first.params, sort_keys=True), "budget": cell.budget, "budget_tokens": first.budget_tokens,
        "context": cell.context, "batch": cell.batch, "n": sum(r.status == "ok" for r in records), "unit": first.unit,
        "status": status, "n_timeout": sum(map(is_unscored, records)),
        "device": _joined(r.provenance.device for r in records),
        "revision": _joined(r.provenance.short_revision for r in records),
        "data_source": _joined(r.data_source for r in records),
        **{name: _mean(_mean(r.measures.get(name) for r in found) for found in members) for name in names},
    }  # fmt: skip
    if status == "ok":
        groups = [unit_scores(r for r in found if r.status == "ok") for found in members]
        interval = mean_interval(groups, is_bounded(records), spread, generator(spread.seed, "mean", *cell))
        # A problem's repeated samples are one unit of the interval, but each counts in the mean that others print.
        value = float(np.mean([np.mean([r.score for r in found if r.status == "ok"]) for found in members]))
        row |= {"value": value, "low": interval.low, "high": interval.high}
    return row


def _joined(values: Iterable[str]) -> str:
    return "; ".join(sorted(set(values)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
