"""The cells of one job and what is known about each: its samples so far, or the status that closed it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from longdecode.evals.journal import Journal
from longdecode.evals.records import Record
from longdecode.evals.run_config import Budget

_FINAL = frozenset({"ok", "unsupported"})
"""Statuses that a resumed run keeps; the others may end better the next time, so those cells run again."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One task at one context and budget, for the model, method and suite of the job."""

    task: str
    context: int
    budget: Budget

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells this cell's records from those of the job's other cells."""
        return (self.task, self.context, self.budget.text)


class Ledger:
    """Every record of a job, read from its journal first and appended to it from then on.

    A cell ends with all its samples or with one status record, never with a mixture. Samples that could not be marked
    in time are samples: what was generated stands in them, and marking it again would take as long again.

    Args:
        journal: open journal of the job.
        cells: the cells wanted, in the order of the final table; records of other cells are left alone.
        samples: samples a cell, by task.
    """

    def __init__(self, journal: Journal, cells: Sequence[Cell], samples: Mapping[str, int]):
        self.cells = tuple(cells)
        self.samples = samples
        self._journal = journal
        self._scored: dict[tuple[str, int, str], dict[int, Record]] = {cell.key: {} for cell in cells}
        self._closed: dict[tuple[str, int, str], Record] = {}
        for record in journal.records:
            if record.status in _FINAL or record.sample_index >= 0:
                self._take(record)

    def missing(self, cell: Cell, indices: Iterable[int]) -> frozenset[int]:
        """The indices among ``indices`` that this cell still lacks; none once a status has closed it."""
        if cell.key in self._closed:
            return frozenset()
        return frozenset(indices) - self._scored[cell.key].keys()

    def is_done(self, cell: Cell) -> bool:
        """Whether nothing is left to run for this cell."""
        return not self.missing(cell, range(self.samples[cell.task]))

    def add(self, record: Record) -> None:
        """Put one record on disk and count it."""
        self._journal.append(record)
        self._take(record)

    def outcome(self, cell: Cell) -> str:
        """One phrase for the progress line: how many samples and their mean score, or the status and its reason."""
        if cell.key in self._closed:
            record = self._closed[cell.key]
            return f"{record.status}: {record.reason}"
        scores = [record.score for record in self._scored[cell.key].values() if record.score is not None]
        unmarked = len(self._scored[cell.key]) - len(scores)
        counted = f"n={len(scores)}" + (f" timeouts={unmarked}" if unmarked else "")
        return f"{counted} mean={fmean(scores):.4f}" if scores else counted

    def final(self) -> list[Record]:
        """All records in the order of the cells, samples by index."""
        ordered: list[Record] = []
        for cell in self.cells:
            if cell.key in self._closed:
                ordered.append(self._closed[cell.key])
            else:
                ordered += [record for _, record in sorted(self._scored[cell.key].items())]
        return ordered

    def _take(self, record: Record) -> None:
        key = (record.task, record.context, record.budget)
        if key not in self._scored:
            return
        if record.sample_index >= 0:
            self._scored[key][record.sample_index] = record
        else:
            self._closed[key] = record
