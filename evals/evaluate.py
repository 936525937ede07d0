"""Score a suite: contexts, tasks, batches (one prefill serves all labels and budgets), each batch journalled."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import resolve_device
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Completion, Generator, Prompt, Request
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.against_full import compared_prompt, full_run
from longdecode.evals.cells import Cell
from longdecode.evals.failures import free_memory, status_of
from longdecode.evals.fairness import TuningGuard
from longdecode.evals.gate import Gate, gate_folder
from longdecode.evals.journal import Journal
from longdecode.evals.ledger import Ledger
from longdecode.evals.manifest import results_root, seal
from longdecode.evals.names import unknown_name
from longdecode.evals.quality_job import LabelJob, QualityJob
from longdecode.evals.records import Provenance, Record
from longdecode.evals.run_config import RunConfig
from longdecode.evals.settings import quality_settings
from longdecode.evals.storage import journal_path, read_records, write_records
from longdecode.evals.tasks.base import Sample, Task

T = TypeVar("T")


def evaluate_suite(
    config: RunConfig, model: str, suite: str, outputs: Mapping[str, Path], *, gated: bool = True
) -> None:
    """Run every cell of some labels on one model and suite and write their records.

    A killed run resumes label by label: batches in a journal are kept, and so are the records of an earlier output
    whose settings and code are today's. Batches have a fixed composition, so that the records are those of an
    uninterrupted run. A cell that cannot run ends as a status; the other cells and labels go on.

    Args:
        outputs: the parquet file of each label; a journal's path follows from it (``journal_path``).
        gated: ask for conformance first; tuning, whose scores stand in no table, does without.

    Raises:
        ConfigError: the configuration has no such model, label or suite, or a knob was tuned on a prompt of the suite.
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
        if job.failure is not None and any(b.of_bytes for label in outputs for b in config.budgets_of(label)):
            raise job.failure  # a budget in bytes is solved for the model's shape
        lines = []
        for label, output in outputs.items():
            refusal = Gate(config, device, gate_folder(output)).refusal(label, model) if gated else None
            lines.append(_open(LabelJob(job, label), output, refusal, stack))
        _Evaluation(job, lines).all_cells()
        for line, output in zip(lines, outputs.values(), strict=True):
            settings = quality_settings(config, model, suite, line.label.label)
            write_records(output, line.ledger.final(), Record, line.label.fingerprint, settings)
        seal(results_root(next(iter(outputs.values()))), outputs.values())


class _Line(NamedTuple):
    """One label, the error that bars it from scoring, and what is known of its cells."""

    label: LabelJob
    refusal: Exception | None
    ledger: Ledger[Cell, Record]


class _Todo(NamedTuple):
    """One cell of one label, and the provenance that its records get."""

    line: _Line
    cell: Cell
    origin: Provenance


def _open(label: LabelJob, output: Path, refusal: Exception | None, stack: ExitStack) -> _Line:
    journal = stack.enter_context(Journal(journal_path(output), label.fingerprint, Record))
    ledger = Ledger(
        journal,
        label.cells,
        samples=lambda cell: label.job.sample_counts[cell.task],
        valid=lambda cell, record: refusal is None and record.provenance.code_hash == label.code_hashes[cell.task],
        kept=read_records(output, Record, label.fingerprint),
    )
    return _Line(label, refusal, ledger)


class _Evaluation:
    """One pass over the cells that are not done."""

    def __init__(self, job: QualityJob, lines: Sequence[_Line]):
        self.job = job
        self.lines = lines
        self.guard = TuningGuard(job.config, job.model, job.model_hash)
        self.open_at_first = sum(len(line.ledger.open(line.ledger.cells)) for line in lines)
        self.started = time.monotonic()
        self.finished = 0

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
        self.guard.check(task.name, context, samples)
        origins = {line.label.label: line.label.provenance(task, samples) for line, _ in found}
        todo = [_Todo(line, cell, origins[line.label.label]) for line, cell in found]
        for item in todo:
            if (reason := failure or item.line.refusal) is not None:
                self._close(task, [item], reason)
        batches = list(self.job.batches(samples))
        for number, batch in enumerate(batches, 1):
            indices = [sample.index for sample in batch]
            wanting = [item for item in todo if item.line.ledger.missing(item.cell, indices)]
            if wanting:
                self._batch(task, context, batch, wanting, (number, len(batches)))
        self._report(task, context, todo)

    def _batch(
        self, task: Task, context: int, batch: Sequence[Sample], wanting: Sequence[_Todo], place: tuple[int, int]
    ) -> None:
        """Prefill a batch once and decode it for every cell that wants it; the prompt is dropped on return.

        A method with a prefill rule of its own gets a prefill of its own, and so does each cell where the shared
        prompt does not fit the device: a method's own cache may be smaller.

        Args:
            place: the batch's number and how many there are, for the line that each label gets when it is through; the
                group's report stands for the last.
        """

        def prepare() -> tuple[Generator, list[Request]]:
            return self.job.generator(task), [self.job.request(task, context, sample) for sample in batch]

        if (prepared := self._attempt(task, wanting, prepare)) is None:
            return
        generator, requests = prepared
        built: list[tuple[_Todo, AttentionMethod]] = []
        for item in wanting:
            build = partial(item.line.label.method_at, item.cell)
            if (method := self._attempt(task, [item], build)) is not None:
                built.append((item, method))
        prompt: Prompt | None = None
        full: list[Completion] | None = None
        failure: Exception | None = None
        if shared := [method for _, method in built if method.prefills_densely]:
            try:
                prompt = generator.prefill(requests, shared)
                if task.against_full:
                    full = full_run(generator, prompt)
                    prompt = compared_prompt(prompt, full)
                    requests = list(prompt.requests)
            except Exception as error:
                failure = error
        if failure is not None and status_of(failure) != "oom":
            self._close(task, [item for item, _ in built], failure)
            return
        if failure is not None:
            free_memory(self.job.device, failure)
        for line, mine in groupby(built, key=lambda pair: pair[0].line):
            ran = False
            for item, method in mine:
                own = None if method not in shared else prompt
                decode = partial(self._decode, generator, requests, own, full, task, batch, item, method)
                ran |= self._attempt(task, [item], decode) is not None
            if ran and (place[0] < place[1] or line is not built[-1][0].line):
                where = f"{self.job.model}/{self.job.suite} {task.name} context={context} {line.label.label}"
                elapsed = time.monotonic() - self.started
                print(f"  {where}: batch {place[0]} of {place[1]}, {elapsed:.0f} s", file=sys.stderr, flush=True)

    def _decode(
        self,
        generator: Generator,
        requests: Sequence[Request],
        prompt: Prompt | None,
        full: Sequence[Completion] | None,
        task: Task,
        batch: Sequence[Sample],
        item: _Todo,
        method: AttentionMethod,
    ) -> bool:
        completions = generator.run(requests, method) if prompt is None else generator.decode(prompt, method)
        references: Sequence[Completion | None] = full or [None] * len(batch)
        missing = item.line.ledger.missing(item.cell, [sample.index for sample in batch])
        records = [
            item.line.label.scored(task, item.cell, sample, completion, method, item.origin, reference)
            for sample, completion, reference in zip(batch, completions, references, strict=True)
        ]
        item.line.ledger.add(*(record for record in records if record.index in missing))
        return True

    def _attempt(self, task: Task, items: Sequence[_Todo], work: Callable[[], T]) -> T | None:
        """Do some work; where it fails with an error of the cells, close them and return ``None``."""
        failure: Exception
        try:
            return work()
        except Exception as error:
            failure = error
        # Outside the handler nothing but the error itself refers to the frames that hold its tensors.
        self._close(task, items, failure)
        return None

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
