"""The cells of a throughput job, and which of them already have their record."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.throughput.records import Bench, SpeedRecord, Stage
from longdecode.evals.throughput.statistics import good_times, median
from longdecode.evals.throughput.storage import SpeedJournal

_FINAL = frozenset({"ok", "unsupported"})
"""Statuses that a resumed job keeps; the others may end better the next time."""
Key = tuple[str, str, str, str, int, int, str, int | None]


@dataclass(frozen=True, slots=True)
class SpeedCell:
    """One thing to time at one size; see ``SpeedRecord`` for the fields."""

    bench: Bench
    subject: str
    label: str
    stage: Stage
    context: int
    batch: int
    budget: Budget = FULL_BUDGET
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What tells this cell's record from the job's others."""
        return (
            self.bench, self.subject, self.label, self.stage, self.context, self.batch, self.budget.text,
            full_heads_of(self),
        )  # fmt: skip

    @property
    def budget_tokens(self) -> int | None:
        """The budget in tokens at this cell's context."""
        return self.budget.tokens(self.context)


def key_of(record: SpeedRecord) -> Key:
    """The key of the cell that a record belongs to."""
    return (
        record.bench, record.subject, record.label, record.stage, record.context, record.batch, record.budget,
        full_heads_of(record),
    )  # fmt: skip


def full_heads_of(timed: SpeedCell | SpeedRecord) -> int | None:
    """How many KV heads of a hybrid kernel case read everything; ``None`` of anything else."""
    return timed.params.get("full_heads") if timed.bench == "kernel" else None


class SpeedLedger:
    """Every record of a job: those of its journal first, then those that are added.

    Args:
        journal: the open journal.
        cells: all cells of the job, in the order of the final table.
        wanted: those to run now; the others keep what the journal has of them.
    """

    def __init__(self, journal: SpeedJournal, cells: Sequence[SpeedCell], wanted: Iterable[SpeedCell] | None = None):
        self.cells = tuple(cells)
        self.wanted = frozenset(cell.key for cell in (cells if wanted is None else wanted))
        self._journal = journal
        known = {cell.key for cell in cells}
        self._records = {
            key_of(record): record for record in journal.records if key_of(record) in known and record.status in _FINAL
        }
        self.fresh: list[SpeedRecord] = []

    def is_open(self, cell: SpeedCell) -> bool:
        """Whether the cell is wanted and has no record yet."""
        return cell.key in self.wanted and cell.key not in self._records

    def open(self, cells: Iterable[SpeedCell]) -> list[SpeedCell]:
        """Those of the cells that are still to be run."""
        return [cell for cell in cells if self.is_open(cell)]

    def add(self, record: SpeedRecord) -> None:
        """Put one record on disk, count it and say so on standard error."""
        self._journal.append(record)
        self._records[key_of(record)] = record
        self.fresh.append(record)
        print(told(record), file=sys.stderr, flush=True)

    def final(self) -> list[SpeedRecord]:
        """The records there are, in the order of the cells."""
        return [self._records[cell.key] for cell in self.cells if cell.key in self._records]


def told(record: SpeedRecord) -> str:
    """One line for the log: what, where, and its median or its status."""
    where = f"{record.bench} {record.subject}/{record.label} {record.stage} context={record.context}"
    where += f" batch={record.batch} budget={record.budget}"
    heads = full_heads_of(record)
    where += "" if heads is None else f" full_heads={heads}"
    if record.status != "ok":
        return f"{where}: {record.status}: {record.reason}"
    times = good_times(record.samples)
    disturbed = len(record.samples) - len(times)
    text = f"{where}: {median([us for us, _ in times]):,.1f} us" if times else f"{where}: every sample disturbed"
    ratios = [reference / us for us, reference in times if reference is not None]
    if ratios and record.reference:
        text += f", {median(ratios):.3f}x of {record.reference}"
    return text + (f" ({disturbed} of {len(record.samples)} disturbed)" if disturbed else "")
