"""Score a suite: contexts, tasks, batches (one prefill serves all labels and budgets), each batch journalled."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import resolve_device
from longdecode.engine.errors import ConfigError
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.cells import Cell
from longdecode.evals.failures import free_memory, status_of
from longdecode.evals.journal import Journal
from longdecode.evals.ledger import Ledger
from longdecode.evals.names import unknown_name
from longdecode.evals.quality_job import LabelJob, QualityJob
from longdecode.evals.records import Provenance, Record
from longdecode.evals.run_config import RunConfig
from longdecode.evals.storage import journal_path, read_records, write_records
from longdecode.evals.tasks.base import Sample, Task
from longdecode.methods.conformance import check_method


def evaluate_suite(config: RunConfig, model: str, suite: str, outputs: Mapping[str, Path]) -> None:
    """Run every cell of some labels on one model and suite and write their records.

    A killed run resumes label by label: batches in a journal are kept, and so are the records of an earlier output
    whose settings and code are today's. Batches have a fixed composition, so that the records are those of an
    uninterrupted run. A cell that cannot run ends as a status; the other cells and labels go on.

    Args:
        outputs: the parquet file of each label; a journal's path follows from it (``journal_path``).

    Raises:
        ConfigError: the configuration has no such model, label or suite.
        CheckpointError: the model cannot be loaded.
        JournalLockedError: another process runs one of the labels.
    """
    for kind, names, known in (
        ("model", [model], config.models),
        ("label", outputs, config.methods),
        ("suite", [suite], config.suites),
    ):
        for name in names:
            if name not in known:
                raise ConfigError(f"{config.source}: {unknown_name(kind, name, known)}")
    with lease_gpu(resolve_device(config.device)) as device, ExitStack() as stack:
        job = QualityJob(config, model, suite, device)
        lines = [_open(LabelJob(job, label), output, stack) for label, output in outputs.items()]
        _Evaluation(job, lines).all_cells()
        for line, output in zip(lines, outputs.values(), strict=True):
            write_records(output, line.ledger.final(), Record, line.label.fingerprint)


class _Line(NamedTuple):
    """One label and what is known of its cells."""

    label: LabelJob
    ledger: Ledger[Cell, Record]


class _Todo(NamedTuple):
    """One cell of one label, and the provenance that its records get."""

    line: _Line
    cell: Cell
    origin: Provenance


def _open(label: LabelJob, output: Path, stack: ExitStack) -> _Line:
    journal = stack.enter_context(Journal(journal_path(output), label.fingerprint, Record))
    ledger = Ledger(
        journal,
        label.cells,
        samples=lambda cell: label.job.sample_counts[cell.task],
        valid=lambda cell, record: record.provenance.code_hash == label.code_hashes[cell.task],
        kept=read_records(output, Record, label.fingerprint),
    )
    return _Line(label, ledger)


class _Evaluation:
    """One pass over the cells that are not done."""

    def __init__(self, job: QualityJob, lines: Sequence[_Line]):
        self.job = job
        self.lines = lines
        self.open_at_first = sum(len(line.ledger.open(line.ledger.cells)) for line in lines)
        self.started = time.monotonic()
        self.finished = 0
        self._refusals: dict[str, Exception | None] = {}

    def all_cells(self) -> None:
        """Run group by group; a group is one task at one context, whose labels and budgets share samples."""
        known = sum(len(line.ledger.cells) for line in self.lines) - self.open_at_first
        where = f"{self.job.model}/{self.job.suite}: {', '.join(line.label.label for line in self.lines)}"
        print(f"{where}: {self.open_at_first} cells to run, {known} known", file=sys.stderr, flush=True)
        for context in self.job.spec.contexts:
            for task in self.job.tasks.values():
                found = [
                    (line, cell)
                    for line in self.lines
                    for cell in line.ledger.open(line.ledger.cells)
                    if (cell.task, cell.context) == (task.name, context)
                ]
                if found:
                    self._group(task, context, found)

    def _group(self, task: Task, context: int, found: Sequence[tuple[_Line, Cell]]) -> None:
        samples: list[Sample] = []
        failure: Exception | None = None
        try:
            samples = self.job.samples(task, context)
        except Exception as error:
            failure = error
        origins = {line.label.label: line.label.provenance(task, samples) for line, _ in found}
        todo = [_Todo(line, cell, origins[line.label.label]) for line, cell in found]
        for item in todo:
            if (reason := failure or self._refusal(item.line.label)) is not None:
                self._close(task, [item], reason)
        for batch in self.job.batches(samples):
            indices = [sample.index for sample in batch]
            wanting = [item for item in todo if item.line.ledger.missing(item.cell, indices)]
            if wanting:
                self._batch(task, context, batch, wanting)
        self._report(task, context, todo)

    def _refusal(self, label: LabelJob) -> Exception | None:
        """Return the error that bars a method from scoring: the conformance suite runs once a method and parameters."""
        name = json.dumps([label.spec.method, label.params], sort_keys=True, default=str)
        if name not in self._refusals:
            self._refusals[name] = None
            try:
                check_method(label.spec.method, self.job.device, label.params)
            except Exception as error:
                if status_of(error) is None:
                    raise
                self._refusals[name] = error
        return self._refusals[name]

    def _batch(self, task: Task, context: int, batch: Sequence[Sample], wanting: Sequence[_Todo]) -> None:
        """Prefill a batch once and decode it for every cell that wants it; the prompt is dropped on return."""
        failure: Exception | None = None
        try:
            generator = self.job.generator(task)
            prompt = generator.prefill([self.job.request(task, context, sample) for sample in batch])
        except Exception as error:
            failure = error
        if failure is not None:
            self._close(task, wanting, failure)
            return
        for item in wanting:
            failure = None
            try:
                label, cell = item.line.label, item.cell
                method: AttentionMethod = label.method(cell.budget.tokens(cell.context))
                completions = generator.decode(prompt, method)
                missing = item.line.ledger.missing(cell, [sample.index for sample in batch])
                records = [
                    label.scored(task, cell, sample, completion, method, item.origin)
                    for sample, completion in zip(batch, completions, strict=True)
                ]
                item.line.ledger.add(*(record for record in records if record.index in missing))
            except Exception as error:
                failure = error
            if failure is not None:
                self._close(task, [item], failure)

    def _close(self, task: Task, items: Sequence[_Todo], error: Exception) -> None:
        """Turn an error that belongs to the cells into their status; raise any other."""
        status = status_of(error)
        if status is None:
            raise error
        for line, cell, origin in items:
            line.ledger.add(line.label.closed(task, cell, status, str(error), origin))
        if status == "oom":
            free_memory(self.job.device, error)

    def _report(self, task: Task, context: int, todo: Sequence[_Todo]) -> None:
        self.finished += len(todo)
        elapsed = time.monotonic() - self.started
        left = elapsed / self.finished * (self.open_at_first - self.finished)
        for line, cell, _ in todo:
            outcome = _outcome(line.ledger.of(cell))
            print(
                f"{line.label.label} {task.name} context={context} budget={cell.budget.text} {outcome}", file=sys.stderr
            )
        print(
            f"  {self.finished}/{self.open_at_first} cells, {elapsed:.0f} s, about {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )


def _outcome(records: Sequence[Record]) -> str:
    """Sum a cell up for the progress line: samples and mean score, or the status and its reason."""
    if records and records[0].index < 0:
        return f"{records[0].status}: {records[0].reason}"
    scores = [record.score for record in records if record.score is not None]
    mean = f" mean={fmean(scores):.4f}" if scores else ""
    late = Counter(record.status for record in records)["timeout"]
    return f"n={len(scores)}{f' timeouts={late}' if late else ''}{mean}"
