"""From records to summary.csv: one tidy row a cell, with interval, paired difference to Full and corrected p-value."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from longdecode.engine.errors import LongDecodeError
from longdecode.evals import curves, stats
from longdecode.evals.budgets import bytes_share
from longdecode.evals.fingerprint import require_settings
from longdecode.evals.manifest import require, seal
from longdecode.evals.problems import problem_of
from longdecode.evals.records import Record
from longdecode.evals.run_config import REFERENCE_METHOD as REFERENCE_METHOD
from longdecode.evals.run_config import load_run_config
from longdecode.evals.store import read_records, write_table

ALL_TASKS = "all"
COLUMNS = (
    "suite", "task", "metric", "model", "method", "variant", "params", "budget", "budget_tokens", "context", "batch",
    "n", "value", "low", "high", "unit", "status", "device", "revision", "data_source", "diff_to_full", "diff_low",
    "diff_high", "p_holm", "kv_tokens_read", "kv_tokens_read_sparse", "kv_bytes_per_step", "metadata_bytes_per_step",
    "n_timeout", "truncated",
)  # fmt: skip
"""Columns of every summary; each further measure of the records, times aside, has a column after these."""
_INTEGERS = ("budget_tokens", "context", "batch", "n", "n_timeout")


class SummaryError(LongDecodeError):
    """Records that cannot stand in one table: a sample twice, or two prompts under one sample number."""


class Cell(NamedTuple):
    """Identity of one row of the table."""

    model: str
    suite: str
    context: int
    batch: int
    budget: str
    label: str
    task: str

    @property
    def place(self) -> tuple[str, str, int, int]:
        """Identify the Full cell that this one is compared with, task aside."""
        return self.model, self.suite, self.context, self.batch


Place = tuple[str, str, int, int]
References = Mapping[tuple[Place, str], list[Record]]


@dataclass(frozen=True, slots=True)
class Spread:
    """Parameters of the bootstrap."""

    confidence: float
    resamples: int
    seed: int


def write_summary(config_path: Path, records: Sequence[Path], output: Path) -> None:
    """Write ``summary.csv`` to ``output``, and beside it the curves that figures need, each file whole or not at all.

    Args:
        config_path: the run's configuration, for confidence, resamples and seed.
        records: parquet files of records, ``records/<model>/<label>/<suite>.parquet`` beside ``output``.
        output: where ``summary.csv`` goes.

    Raises:
        SummaryError: the records contradict each other.
        SettingsError: a file was made under other settings than the configuration's.
        ManifestError: a file changed since it was written, or is missing.
        RecordSchemaError: a file was written by a schema this code cannot read.
    """
    config = load_run_config(config_path)
    root = output.parent
    require(root, records)
    found: dict[Path, list[Record]] = {}
    for path in sorted(records):
        found[path] = read_records(path, Record)
        require_settings(config, path, found[path])
    rows = [record for path in found for record in found[path]]
    spread = Spread(config.confidence, config.bootstrap_resamples, config.seed)
    tables = [output, output.with_name("along_generation.parquet"), output.with_name("loss_by_position.parquet")]
    write_table(output, summarise(rows, spread))
    write_table(tables[1], curves.along_generation(rows, spread.confidence))
    write_table(tables[2], curves.loss_by_position(rows, spread.confidence))
    seal(root, tables)


def summarise(records: Iterable[Record], spread: Spread) -> pd.DataFrame:
    """Make one row for each task cell and one, named ``all``, for the mean over the tasks of its suite.

    A cell with any status but ``ok`` keeps its row, its value left empty. Samples that could not be scored in time
    (``n_timeout`` of them) are neither right nor wrong: the value is the mean over the others. ``truncated`` is the
    share of generations that the context cut off, empty for tasks that wait for no end-of-sequence token.

    The suite mean takes the tasks that Full could do at that context; a method that lacks one of them has no value
    there, because a mean over fewer tasks is not comparable.
    """
    cells = _cells(records)
    references = _references(cells)
    rows = [_task_row(cell, found, references, spread) for cell, found in cells.items()]
    rows += _suite_rows(cells, references, spread)
    _correct(rows)
    more = sorted({name for row in rows for name in row} - {*COLUMNS, "p_value"})
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *more])
    for name in _INTEGERS:
        frame[name] = frame[name].astype("Int64")
    return frame


def _cells(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """Records by cell, cells in table order, each cell's samples in order."""
    found: dict[Cell, list[Record]] = defaultdict(list)
    for r in records:
        found[Cell(r.model, r.suite, r.context, r.batch, r.budget, r.variant, r.task)].append(r)
    for cell, rows in found.items():
        rows.sort(key=_sample)
        twice = [a for a, b in pairwise(rows) if a.sample_index >= 0 and _sample(a) == _sample(b)]
        if twice:
            raise SummaryError(f"{cell}: sample {twice[0].sample_index} of seed {twice[0].seed} is there twice")
    return {cell: found[cell] for cell in sorted(found, key=_table_order)}


def _sample(record: Record) -> tuple[int, int]:
    return record.seed, record.sample_index


def _table_order(cell: Cell) -> tuple[Any, ...]:
    try:
        size = bytes_share(cell.budget) or float(cell.budget)
    except ValueError:
        size = -1.0
    return cell.model, cell.suite, cell.task, cell.context, cell.batch, size, cell.label


def _task_row(cell: Cell, found: list[Record], references: References, spread: Spread) -> dict[str, Any]:
    row = _identity(cell, found)
    if row["status"] != "ok":
        return row
    estimate = stats.mean_estimate(
        scores_of(_scored(found)), spread.confidence, spread.resamples, stats.generator(spread.seed, "mean", *cell)
    )
    row |= {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    reference = references.get((cell.place, cell.task))
    pair = _paired(cell, found, reference) if reference and found[0].method != REFERENCE_METHOD else None
    if pair:
        row |= _difference([pair], cell, spread)
    return row


def _suite_rows(cells: Mapping[Cell, list[Record]], references: References, spread: Spread) -> list[dict[str, Any]]:
    tasks: dict[Cell, dict[str, list[Record]]] = defaultdict(dict)
    for cell, found in cells.items():
        tasks[cell._replace(task=ALL_TASKS)][cell.task] = found
    wanted = {cell: names for cell, names in _suite_tasks(tasks).items() if len(names) > 1}
    rows = []
    for cell in sorted((cell for cell in tasks if cell.place in wanted), key=_table_order):
        members = [tasks[cell].get(name, []) for name in sorted(wanted[cell.place])]
        if len({(r.unit, r.higher_is_better) for found in members for r in found}) == 1:
            rows.append(_suite_row(cell, members, references, spread))
    return rows


def _suite_tasks(tasks: Mapping[Cell, Mapping[str, list[Record]]]) -> dict[Place, set[str]]:
    """The tasks that make up a suite at each place: those that ran under Full, or at all where Full is absent."""
    ran: dict[Place, set[str]] = defaultdict(set)
    under_full: dict[Place, set[str]] = defaultdict(set)
    for cell, by_task in tasks.items():
        for name, found in by_task.items():
            if _status(found) == "ok":
                ran[cell.place].add(name)
                if found[0].method == REFERENCE_METHOD:
                    under_full[cell.place].add(name)
    return {place: under_full.get(place) or names for place, names in ran.items()}


def _suite_row(cell: Cell, members: Sequence[list[Record]], references: References, spread: Spread) -> dict[str, Any]:
    everything = [record for found in members for record in found]
    row = _identity(cell, everything)
    if len(metrics := {record.metric for record in everything}) > 1:
        row["metric"] = "mean of " + ", ".join(sorted(metrics))
    if row["status"] == "ok":
        row["status"] = next((status for found in members if (status := _status(found)) != "ok"), "ok")
    if row["status"] != "ok":
        return row
    rng = stats.generator(spread.seed, "mean", *cell)
    estimate = stats.mean_of_means(
        [scores_of(_scored(found)) for found in members], spread.confidence, spread.resamples, rng
    )
    row |= {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    row |= {name: _mean(_mean(r.measures.get(name) for r in found) for found in members) for name in _names(everything)}
    fulls = [references.get((cell.place, found[0].task), []) for found in members]
    if everything[0].method != REFERENCE_METHOD and all(fulls):
        pairs = [_paired(cell, found, full) for found, full in zip(members, fulls, strict=True)]
        both = [pair for pair in pairs if pair]
        row |= _difference(both, cell, spread) if len(both) == len(pairs) else {}
    return row


def _identity(cell: Cell, found: Sequence[Record]) -> dict[str, Any]:
    """Everything of a row that needs no statistics."""
    first = found[0]
    row: dict[str, Any] = dict.fromkeys((*COLUMNS, "p_value"))
    row |= {
        "suite": cell.suite, "task": cell.task, "metric": first.metric, "model": cell.model, "method": first.method,
        "variant": cell.label, "params": json.dumps(first.params, sort_keys=True),
        "budget": cell.budget, "budget_tokens": first.budget_tokens,
        "context": cell.context, "batch": cell.batch, "n": len(_scored(found)), "unit": first.unit,
        "n_timeout": sum(map(_is_unscored, found)), "status": _status(found),
        "device": _joined(r.provenance.device for r in found),
        "revision": _joined(r.provenance.short_revision for r in found),
        "data_source": _joined(r.data_source for r in found),
    }  # fmt: skip
    return row | {name: _mean(r.measures.get(name) for r in found) for name in _names(found)}


def _names(found: Iterable[Record]) -> list[str]:
    """Names of the measures of some records; times are left out, because they differ from run to run."""
    return sorted({name for r in found for name in r.measures if not name.endswith("_ms")})


def _status(found: Sequence[Record]) -> str:
    """Return one status for a cell; samples without a score do not fail it as long as others have one."""
    if not found:
        return "unsupported"
    failed = next((r.status for r in found if r.status != "ok" and not _is_unscored(r)), None)
    return failed or ("ok" if _scored(found) else "timeout")


def _is_unscored(record: Record) -> bool:
    """Tell a sample that could not be scored in time."""
    return record.status == "timeout" and record.sample_index >= 0


def _scored(found: Iterable[Record]) -> list[Record]:
    """Return the samples that have a score."""
    return [r for r in found if r.status == "ok"]


def _joined(values: Iterable[str]) -> str:
    return "; ".join(sorted(set(values)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _references(cells: Mapping[Cell, list[Record]]) -> References:
    """The records of Full that ran, by place and task."""
    return {
        (cell.place, cell.task): found
        for cell, found in cells.items()
        if found[0].method == REFERENCE_METHOD and _status(found) == "ok"
    }


def scores_of(found: Sequence[Record]) -> stats.Scores:
    """Return the scores of one cell's samples, those of one problem under one number."""
    values = np.array([r.score for r in found], dtype=np.float64)
    problems = {name: number for number, name in enumerate(dict.fromkeys(map(problem_of, found)))}
    clusters = np.array([problems[problem_of(r)] for r in found], dtype=np.int64)
    bounded = found[0].higher_is_better and bool(np.all((values >= 0) & (values <= 1)))
    trials = np.array([_items(r) for r in found], dtype=np.int64) if bounded else None
    return stats.Scores(values, clusters, trials)


def _items(record: Record) -> int:
    """Return how many right-or-wrong items the score is the mean of; 1 where it is not made that way."""
    parts = record.parts or []
    made_of_parts = set(parts) <= {0.0, 1.0} and bool(parts) and abs(np.mean(parts) - float(record.score or 0)) < 1e-9
    return len(parts) if made_of_parts else 1


def _paired(
    cell: Cell, ours: Sequence[Record], reference: Sequence[Record]
) -> tuple[stats.Scores, stats.Scores] | None:
    """Scores of the samples that both sides have scored; ``None`` where timeouts leave none."""
    theirs = {_sample(r): r for r in reference}
    common = [(r, theirs[_sample(r)]) for r in ours if _sample(r) in theirs]
    for mine, full in common:
        if mine.prompt_sha256 != full.prompt_sha256:
            raise SummaryError(f"{cell}: sample {mine.sample_index} has another prompt than under {full.variant}")
    if not common:
        raise SummaryError(f"{cell}: shares no sample with {reference[0].variant}")
    common = [(mine, full) for mine, full in common if mine.status == "ok" == full.status]
    return (scores_of([mine for mine, _ in common]), scores_of([full for _, full in common])) if common else None


def _difference(pairs: Sequence[tuple[stats.Scores, stats.Scores]], cell: Cell, spread: Spread) -> dict[str, Any]:
    rng = stats.generator(spread.seed, "difference", *cell)
    found = stats.paired_difference(pairs, spread.confidence, spread.resamples, rng)
    return {
        "diff_to_full": found.value, "diff_low": found.low, "diff_high": found.high, "p_value": found.p_value,
    }  # fmt: skip


def _correct(rows: Sequence[dict[str, Any]]) -> None:
    """Holm's correction over the methods that share a table: same model, suite, task, context, batch and budget."""
    tables: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["p_value"] is not None:
            tables[tuple(row[name] for name in ("model", "suite", "task", "context", "batch", "budget"))].append(row)
    for table in tables.values():
        for row, adjusted in zip(table, stats.holm([row["p_value"] for row in table]), strict=True):
            row["p_holm"] = adjusted
