"""The cells of one job and what is known about each: its samples so far, or the status that closed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from longdecode.evals.journal import Journal
from longdecode.evals.records import FINAL_STATUSES, BaseRecord, Key, RecordSchemaError


class HasKey(Protocol):
    """A cell: anything that says which records are its own."""

    @property
    def key(self) -> Key:
        """The ``key`` of the cell's records."""


C = TypeVar("C", bound=HasKey)
R = TypeVar("R", bound=BaseRecord)


class Ledger(Generic[C, R]):
    """Every record of a job: known ones first, new ones appended to the journal.

    A cell ends with all its samples or with one status record, never with a mixture. A sample that could not be scored
    in time counts as a sample: scoring it again would take as long again.

    Args:
        journal: open journal of the job.
        cells: all cells, in the order of the final table; records of other cells are left alone.
        samples: number of records that complete a cell.
        valid: tells whether a known record still holds for its cell; any record does by default.
        kept: known records from outside the journal, such as those of an earlier output.
        wanted: the cells to run now; all by default. The others keep what is known of them.
        on_add: called with each record once it is on disk.

    Raises:
        RecordSchemaError: a known record has a sample number that its cell does not.
    """

    def __init__(
        self,
        journal: Journal[R],
        cells: Sequence[C],
        *,
        samples: Callable[[C], int] = lambda cell: 1,
        valid: Callable[[C, R], bool] = lambda cell, record: True,
        kept: Iterable[R] = (),
        wanted: Iterable[C] | None = None,
        on_add: Callable[[R], object] = lambda record: None,
    ):
        self.cells = tuple(cells)
        self.fresh: list[R] = []
        self._journal = journal
        self._samples = samples
        self._on_add = on_add
        self._wanted = {cell.key for cell in (cells if wanted is None else wanted)}
        self._done: dict[Key, dict[int, R]] = {cell.key: {} for cell in cells}
        self._closed: dict[Key, R] = {}
        by_key = {cell.key: cell for cell in cells}
        for record in (*kept, *journal.records):
            lasting = record.status in FINAL_STATUSES or record.index >= 0
            if lasting and record.key in by_key and valid(by_key[record.key], record):
                if record.index >= (most := samples(by_key[record.key])):
                    raise RecordSchemaError(
                        f"{journal.path}: sample {record.index} of {record.key}, which has {most}; move this journal "
                        "and its parquet file away to start anew"
                    )
                self._take(record)

    def missing(self, cell: C, indices: Iterable[int]) -> frozenset[int]:
        """Return the indices among ``indices`` that this cell still lacks; none once a status has closed it."""
        if cell.key in self._closed:
            return frozenset()
        return frozenset(indices) - self._done[cell.key].keys()

    def is_open(self, cell: C) -> bool:
        """Return whether the cell is wanted and lacks a record."""
        return cell.key in self._wanted and bool(self.missing(cell, range(self._samples(cell))))

    def open(self, cells: Iterable[C]) -> list[C]:
        """Return those of the cells that are still to be run."""
        return [cell for cell in cells if self.is_open(cell)]

    def add(self, *records: R) -> None:
        """Put one batch of records on disk and count it."""
        if records:
            self._journal.append(*records)
        for record in records:
            self._take(record)
            self.fresh.append(record)
            self._on_add(record)

    def of(self, cell: C) -> list[R]:
        """Return the records of a cell: the one that closed it, or its samples by index."""
        closed = self._closed.get(cell.key)
        return [closed] if closed is not None else [record for _, record in sorted(self._done[cell.key].items())]

    def final(self) -> list[R]:
        """Return all records in the order of the cells."""
        return [record for cell in self.cells for record in self.of(cell)]

    def _take(self, record: R) -> None:
        if record.index >= 0:
            self._done[record.key][record.index] = record
        else:
            self._closed[record.key] = record
