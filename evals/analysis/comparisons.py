"""Make comparisons.csv: a row a pair of variants on the same prompts, with interval, corrected p-value and verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from longdecode.evals.analysis.baseline import Status, task_status
from longdecode.evals.analysis.cells import (
    Cell,
    Cells,
    is_bounded,
    method_of,
    paired_units,
    same_prompts,
    scored_cells,
    tokens_read,
)
from longdecode.evals.analysis.intervals import Floats, mean_of_groups, paired_interval
from longdecode.evals.analysis.margin import judge, margin_of
from longdecode.evals.analysis.pairs import PairRequest, against_full, requested
from longdecode.evals.analysis.significance import holm, sign_flip_p
from longdecode.evals.records import Record
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import generator
from longdecode.evals.summary import ALL_TASKS, Spread

COLUMNS = (
    "a", "b", "model", "b_model", "suite", "task", "context", "batch", "budget", "b_budget", "n", "a_value", "b_value",
    "difference", "low", "high", "unit", "better", "p", "p_holm", "margin", "verdict", "status", "revision",
)  # fmt: skip
WINDOW_METHOD = "streaming"
_FAMILY = ("b", "b_model", "suite", "task", "context", "batch", "budget", "b_budget")
"""Columns that the variants of one table share; Holm's correction is over the rows of such a table."""

Pair = tuple[Cell, Cell]
RowStatus = Status | Literal["one_training"]


def comparisons_table(
    records: Iterable[Record], requests: Sequence[PairRequest], pools: Mapping[str, Sequence[str]], spread: Spread
) -> pd.DataFrame:
    """Return every pair that a page or text quotes: a row a task, one named ``all`` for a suite's mean, one a pool.

    The unit is the prompt (the book, the problem). A suite's mean is over the tasks that full attention can do. A task
    that it cannot do keeps its row, without p-value and verdict. Two models (forks of one checkpoint) differ by their
    training too, so that one training of each tells nothing.

    Args:
        records: one a sample.
        requests: pairs beside those with full attention.
        pools: by name, tasks whose mean is compared too.
        spread: confidence, bootstrap draws and seed.

    Raises:
        PairError: two sides were scored on different prompts.
    """
    cells = scored_cells(records)
    statuses = _statuses(cells, spread)
    pairs = list(dict.fromkeys([*against_full(cells), *requested(cells, requests)]))
    rows = [_row([pair], pair[0].task, cells, statuses, spread) for pair in pairs]
    for name, members in _groups(pairs, cells, _tasks_of(statuses, pools)):
        rows.append(_row(members, name, cells, statuses, spread))
    found = [row for row in rows if row is not None]
    _correct(found, spread)
    return pd.DataFrame(found, columns=list(COLUMNS)).sort_values(
        ["model", "suite", "task", "context", "batch", "b_model", "b"], kind="stable", ignore_index=True
    )


def _statuses(cells: Cells, spread: Spread) -> dict[tuple[Any, ...], Status]:
    """Return the status of each task at each place, from full attention and the window that read least.

    A fork without a window of its own is held against that of another fork on the same prompts.
    """
    windows = [cell for cell, samples in cells.items() if method_of(samples) == WINDOW_METHOD]
    found: dict[tuple[Any, ...], Status] = {}
    for cell, samples in cells.items():
        if method_of(samples) == REFERENCE_METHOD:
            here = [w for w in windows if w[:5] == cell[:5]] or [
                w for w in windows if w[1:5] == cell[1:5] and same_prompts(cells[w], samples)
            ]
            window = min((cells[w] for w in here), key=tokens_read, default=None)
            rng = generator(spread.seed, "status", *cell)
            found[cell[:5]] = task_status(samples, window, spread.confidence, spread.resamples, rng)
    return found


def _tasks_of(
    statuses: Mapping[tuple[Any, ...], Status], pools: Mapping[str, Sequence[str]]
) -> dict[tuple[Any, ...], dict[str, set[str]]]:
    """Return the tasks behind each mean by the place of full attention: a suite's that it can do, and each pool's."""
    found: dict[tuple[Any, ...], dict[str, set[str]]] = defaultdict(
        lambda: {n: set(tasks) for n, tasks in pools.items()}
    )
    for place, status in statuses.items():
        if status != "baseline_fails":
            found[place[:2] + place[3:]].setdefault(ALL_TASKS, set()).add(place[2])
    return found


def _groups(
    pairs: Sequence[Pair], cells: Cells, tasks: Mapping[tuple[Any, ...], Mapping[str, set[str]]]
) -> Iterator[tuple[str, list[Pair]]]:
    """Yield the pairs behind each mean; a pair of variants that lacks one of the tasks has no mean."""
    groups: dict[Pair, list[Pair]] = defaultdict(list)
    for a, b in pairs:
        groups[a._replace(task=ALL_TASKS), b._replace(task=ALL_TASKS)].append((a, b))
    for (_, b), members in groups.items():
        for name, wanted in tasks.get(b[:2] + b[3:5], {}).items():
            kept = sorted(pair for pair in members if pair[0].task in wanted)
            kinds = {(r.unit, r.higher_is_better) for pair in kept for side in pair for r in cells[side].values()}
            if len(wanted) > 1 and {a.task for a, _ in kept} == wanted and len(kinds) == 1:
                yield name, kept


def _row(
    members: Sequence[Pair], task: str, cells: Cells, statuses: Mapping[tuple[Any, ...], Status], spread: Spread
) -> dict[str, Any] | None:
    """Return one row, or nothing where timeouts leave no sample that both sides have scored."""
    a, b = members[0]
    units = [paired_units(cells[ours], cells[theirs]) for ours, theirs in members]
    if not all(len(ours) for ours, _ in units):
        return None
    first = next(iter(cells[a].values()))
    points = first.unit == "fraction"
    scale = 100.0 if points else 1.0
    unit = "points" if points else first.unit
    gaps: list[Floats] = [ours - theirs for ours, theirs in units]
    bounded = all(is_bounded(cells[side]) for pair in members for side in pair)
    identity = (spread.seed, task, *a, *b)
    found = paired_interval(gaps, bounded, spread.confidence, spread.resamples, generator("interval", *identity))
    status: RowStatus = statuses.get(b[:5], "ok") if len(members) == 1 else "ok"
    if a.model != b.model and status != "baseline_fails":
        status = "one_training"
    return {
        "a": a.variant, "b": b.variant, "model": a.model, "b_model": b.model, "suite": a.suite, "task": task,
        "context": a.context, "batch": a.batch, "budget": a.budget, "b_budget": b.budget,
        "n": sum(len(gap) for gap in gaps),
        "a_value": scale * float(mean_of_groups(*(ours for ours, _ in units))),
        "b_value": scale * float(mean_of_groups(*(theirs for _, theirs in units))),
        "difference": scale * found.value, "low": scale * found.low, "high": scale * found.high, "unit": unit,
        "better": "higher" if first.higher_is_better else "lower", "margin": margin_of(unit), "status": status,
        "p": sign_flip_p(gaps, spread.resamples, generator("p", *identity)) if status != "baseline_fails" else np.nan,
        "p_holm": np.nan, "verdict": None,
        "revision": "; ".join(sorted({r.provenance.short_revision for pair in members for side in pair
                                      for r in cells[side].values()})),
    }  # fmt: skip


def _correct(rows: Sequence[dict[str, Any]], spread: Spread) -> None:
    """Fill in the p-values after Holm's correction over a table's variants, and the verdicts that follow from them."""
    tables: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["status"] != "baseline_fails":
            tables[tuple(row[name] for name in _FAMILY)].append(row)
    for table in tables.values():
        for row, adjusted in zip(table, holm([row["p"] for row in table]), strict=True):
            row["p_holm"] = adjusted
            row["verdict"] = "cannot tell" if row["status"] == "one_training" else judge(
                row["low"], row["high"], adjusted, row["margin"], row["better"] == "higher", row["n"],
                1 - spread.confidence,
            )  # fmt: skip
