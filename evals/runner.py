"""The loop of one job: contexts, tasks, batches (one prefill each), budgets; each sample journalled once scored."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from longdecode.engine.device import resolve_device
from longdecode.engine.errors import (
    ConfigError,
    DataUnavailableError,
    DeviceMemoryError,
    GateError,
    UnsupportedCellError,
)
from longdecode.engine.generation import Completion, Generator, Prompt
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.against_full import compared_prompt, full_run
from longdecode.evals.cells import Cell, Ledger
from longdecode.evals.job import Job, journal_path
from longdecode.evals.journal import Journal
from longdecode.evals.names import unknown_name
from longdecode.evals.records import Provenance, Status
from longdecode.evals.run_config import RunConfig
from longdecode.evals.storage import write_records
from longdecode.evals.tasks.base import Sample, Task
from longdecode.methods.conformance import check_method

_CPU_ALLOCATOR = "DefaultCPUAllocator"


def run_job(config: RunConfig, model: str, label: str, suite: str, output: Path) -> None:
    """Run every cell of one (model, method label, suite) and write its records.

    A killed run resumes: samples in the journal are kept, and batches have a fixed composition, so that the records are
    those of an uninterrupted run. A cell that cannot run ends as a status and the job goes on.

    Args:
        output: the parquet file; the journal's path follows from it (``journal_path``).

    Raises:
        ConfigError: the configuration has no such model, label or suite.
        CheckpointError: the model cannot be loaded.
        JournalLockedError: another process runs this job.
    """
    for kind, name, known in (
        ("model", model, config.models),
        ("label", label, config.methods),
        ("suite", suite, config.suites),
    ):
        if name not in known:
            raise ConfigError(f"{config.source}: {unknown_name(kind, name, known)}")
    with lease_gpu(resolve_device(config.device)) as device:
        job = Job(config, model, label, suite, device)
        with Journal(journal_path(output), job.fingerprint) as journal:
            ledger = Ledger(journal, job.cells, job.sample_counts)
            _Run(job, ledger).all_cells()
            write_records(output, ledger.final())


class _Run:
    """One pass over the cells of a job that are not done."""

    def __init__(self, job: Job, ledger: Ledger):
        self.job = job
        self.ledger = ledger
        self.todo = [cell for cell in ledger.cells if not ledger.is_done(cell)]
        self.started = time.monotonic()
        self.finished = 0

    def all_cells(self) -> None:
        """Run group by group; a group is one task at one context, whose budgets share samples and prefills."""
        name = f"{self.job.model}/{self.job.label}/{self.job.suite}"
        kept = len(self.ledger.cells) - len(self.todo)
        print(f"{name}: {len(self.todo)} cells to run, {kept} kept from the journal", file=sys.stderr, flush=True)
        if not self.todo:
            return
        refused = self._gate()
        groups = dict.fromkeys((cell.task, cell.context) for cell in self.todo)
        for task_name, context in groups:
            cells = [cell for cell in self.todo if (cell.task, cell.context) == (task_name, context)]
            self._group(self.job.task(task_name), context, cells, refused)
            self._report(cells)

    def _gate(self) -> GateError | None:
        """The conformance suite, once a job on the job's device: a method that fails it is not scored."""
        try:
            check_method(self.job.method_spec.method, self.job.device, self.job.params)
        except GateError as error:
            return error
        return None

    def _group(self, task: Task, context: int, cells: Sequence[Cell], refused: GateError | None) -> None:
        try:
            samples = self.job.samples(task, context)
        except (UnsupportedCellError, DataUnavailableError) as error:
            self._close(task, cells, error, self.job.provenance([]))
            return
        origin = self.job.provenance(samples)
        if refused is not None:
            self._close(task, cells, refused, origin)
            return
        for start in range(0, len(samples), self.job.spec.batch):
            batch = samples[start : start + self.job.spec.batch]
            indices = [sample.index for sample in batch]
            wanting = [cell for cell in cells if self.ledger.missing(cell, indices)]
            if wanting:
                self._batch(task, context, batch, wanting, origin)

    def _batch(
        self, task: Task, context: int, batch: Sequence[Sample], cells: Sequence[Cell], origin: Provenance
    ) -> None:
        failure: Exception | None = None
        full: list[Completion] | None = None
        try:
            generator = self.job.generator(task)
            prompt = generator.prefill([self.job.request(task, context, sample) for sample in batch])
            if task.against_full:
                full = full_run(generator, prompt)
                prompt = compared_prompt(prompt, full)
        except Exception as error:
            failure = error
        if failure is not None:
            self._close(task, cells, failure, origin)
            return
        for cell in cells:
            failure = None
            try:
                self._decode(generator, prompt, task, cell, batch, origin, full)
            except Exception as error:
                failure = error
            if failure is not None:
                self._close(task, [cell], failure, origin)

    def _decode(
        self,
        generator: Generator,
        prompt: Prompt,
        task: Task,
        cell: Cell,
        batch: Sequence[Sample],
        origin: Provenance,
        full: Sequence[Completion] | None,
    ) -> None:
        method = self.job.method(cell.budget.tokens(cell.context))
        completions = generator.decode(prompt, method)
        references: Sequence[Completion | None] = full or [None] * len(batch)
        missing = self.ledger.missing(cell, [sample.index for sample in batch])
        records = [
            self.job.scored(task, cell, sample, completion, method, origin, reference)
            for sample, completion, reference in zip(batch, completions, references, strict=True)
        ]
        for record in records:
            if record.sample_index in missing:
                self.ledger.add(record)

    def _close(self, task: Task, cells: Sequence[Cell], error: Exception, origin: Provenance) -> None:
        """Turn an error that belongs to the cell into its status; raise any other."""
        status = _status_of(error)
        if status is None:
            raise error
        for cell in cells:
            self.ledger.add(self.job.closed(task, cell, status, str(error), origin))
        if status == "oom":
            # The traceback's frames hold the tensors that did not fit together.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            gc.collect()
            if self.job.device.type == "cuda":
                torch.cuda.empty_cache()

    def _report(self, cells: Sequence[Cell]) -> None:
        self.finished += len(cells)
        elapsed = time.monotonic() - self.started
        left = elapsed / self.finished * (len(self.todo) - self.finished)
        by_outcome: dict[str, list[str]] = {}
        for cell in cells:
            by_outcome.setdefault(self.ledger.outcome(cell), []).append(cell.budget.text)
        where = f"{self.job.label} {cells[0].task} context={cells[0].context}"
        for outcome, budgets in by_outcome.items():
            print(f"{where} budget={','.join(budgets)} {outcome}", file=sys.stderr)
        print(
            f"  {self.finished}/{len(self.todo)} cells, {elapsed:.0f} s, about {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )


def _status_of(error: Exception) -> Status | None:
    """The status an error gives its cell, or ``None`` for errors that are no cell's own."""
    if isinstance(error, DeviceMemoryError | torch.cuda.OutOfMemoryError | MemoryError):
        return "oom"
    if isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error):
        return "oom"
    if isinstance(error, UnsupportedCellError):
        return "unsupported"
    if isinstance(error, GateError):
        return "failed_gate"
    if isinstance(error, DataUnavailableError):
        return "data_unavailable"
    return None
