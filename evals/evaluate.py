"""Score a suite: contexts, tasks, batches; one prefill serves all variants and budgets, each batch is stored."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import resolve_device
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Completion, Generator, Prompt, Request
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.against_full import compared_prompt, full_run
from longdecode.evals.failures import free_memory, status_of
from longdecode.evals.fairness import TuningGuard
from longdecode.evals.gate import Gate, gate_folder
from longdecode.evals.manifest import seal
from longdecode.evals.names import unknown_name
from longdecode.evals.quality_job import QualityJob, Variant
from longdecode.evals.records import Cell, Record
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import Store, results_root
from longdecode.evals.tasks.base import Sample, Task

T = TypeVar("T")


def evaluate_suite(
    config: RunConfig, model: str, suite: str, outputs: Mapping[str, Path], *, gated: bool = True
) -> None:
    """Run every cell of some variants on one model and suite and write their records.

    A killed run resumes: records on disk are kept where their fingerprint is today's. Batches have a fixed composition,
    so that the records are those of an uninterrupted run. A cell that cannot run ends as a status; the others go on.

    Args:
        outputs: the parquet file of each variant.
        gated: ask for conformance first; tuning, whose scores stand in no table, does without.

    Raises:
        ConfigError: the configuration has no such model, variant or suite, or a knob was tuned on one of its prompts.
        CheckpointError: the model cannot be loaded.
        LockHeldError: another process runs one of the variants.
    """
    for kind, names, known in (
        ("model", [model], config.models),
        ("variant", outputs, config.methods),
        ("suite", [suite], config.suites),
    ):
        for name in names:
            if name not in known:
                raise ConfigError(f"{config.source}: {unknown_name(kind, name, known)}")
    with lease_gpu(resolve_device(config.device)) as device, ExitStack() as stack:
        job = QualityJob(config, model, suite, device)
        if job.failure is not None and any(b.of_bytes for name in outputs for b in config.budgets_of(name)):
            raise job.failure  # a budget in bytes is solved for the model's shape
        lines = list[_Line]()
        for name, output in outputs.items():
            variant = Variant(job, name)
            refusal = Gate(config, device, gate_folder(output)).refusal(name, model) if gated else None
            lines.append(_Line(variant, refusal, stack.enter_context(_store(variant, output, refusal))))
        _Evaluation(job, lines).run()
        for line in lines:
            line.store.finish()
        seal(results_root(next(iter(outputs.values()))), outputs.values())


class _Line(NamedTuple):
    """One variant, the error that bars it from scoring, and what is known of its cells."""

    variant: Variant
    refusal: Exception | None
    store: Store[Cell, Record]


class _Todo(NamedTuple):
    """One cell that is not done."""

    line: _Line
    cell: Cell

    def scores(self, batch: Sequence[Sample]) -> frozenset[int]:
        """Return the numbers of the samples that the cell lacks."""
        return self.line.store.missing(self.cell, [sample.index for sample in batch])


class _Shared(NamedTuple):
    """What the cells of one batch share: a prefilled prompt, and Full's run over it where a task compares with it."""

    requests: Sequence[Request]
    prompt: Prompt | None = None
    full: Sequence[Completion] | None = None


def _store(variant: Variant, output: Path, refusal: Exception | None) -> Store[Cell, Record]:
    tasks, samples = variant.job.tasks, variant.job.spec.samples
    return Store(
        output,
        Record,
        variant.cells,
        lambda cell: None if refusal else variant.origin(cell).fingerprint,
        samples=lambda cell: samples * tasks[cell.task].samples_per_problem,
    )


class _Evaluation:
    """One pass over the cells that are not done."""

    def __init__(self, job: QualityJob, lines: Sequence[_Line]):
        self.job, self.lines = job, lines
        self.guard = TuningGuard(job.config, job.model, job.model_hash)
        self.left = sum(len(line.store.open(line.store.cells)) for line in lines)
        self.started, self.finished = time.monotonic(), 0

    def run(self) -> None:
        """Run task by task at each context; variants and budgets share samples."""
        cells, names = sum(len(line.store.cells) for line in self.lines), [line.variant.name for line in self.lines]
        _say(f"{self._where}: {', '.join(names)}: {self.left} cells to run, {cells - self.left} known")
        for context in self.job.spec.contexts:
            for task in self.job.tasks.values():
                todo = [
                    _Todo(line, cell)
                    for line in self.lines
                    for cell in line.store.open(line.store.cells)
                    if (cell.task, cell.context) == (task.name, context)
                ]
                if todo:
                    self._task(task, context, todo)
                    self._report(todo)

    def _task(self, task: Task, context: int, todo: Sequence[_Todo]) -> None:
        """Close what cannot run at all, then take the samples batch by batch."""
        samples = self._attempt(todo, lambda: self.job.samples(task, context)) or []
        self.guard.check(task.name, context, samples)
        for item in todo if samples else ():
            if item.line.refusal is not None:
                self._close([item], item.line.refusal)
        size = self.job.spec.batch  # of fixed composition, so that a resumed run repeats the first one's numbers
        batches = [samples[start : start + size] for start in range(0, len(samples), size)]
        for number, batch in enumerate(batches, 1):
            if wanting := [item for item in todo if item.scores(batch)]:
                self._batch(task, context, batch, wanting)
                if number < len(batches):
                    place = f"{self._where} {task.name} context={context}"
                    _say(f"  {place}: batch {number} of {len(batches)}, {self._elapsed:.0f} s")

    def _batch(self, task: Task, context: int, batch: Sequence[Sample], wanting: Sequence[_Todo]) -> None:
        """Prefill a batch once and decode it for every cell that wants it; the prompt is dropped on return.

        A method with a prefill rule of its own gets a prefill of its own, and so does each cell where the shared
        prompt does not fit the device: a method's own cache may be smaller.
        """
        prepared = self._attempt(
            wanting, lambda: (self.job.generator(task), [self.job.request(task, context, s) for s in batch])
        )
        if prepared is None:
            return
        generator, requests = prepared
        methods = {
            item: method
            for item in wanting
            if (method := self._attempt([item], partial(item.line.variant.method_at, item.cell))) is not None
        }
        alone, failure = _Shared(requests), None
        shared = alone
        try:
            shared = _prefilled(generator, task, requests, [m for m in methods.values() if m.prefills_densely])
        except Exception as error:
            failure = error
        if failure is not None:
            if status_of(failure) != "oom":
                self._close(list(methods), failure)
                return
            free_memory(self.job.device, failure)
        for item, method in methods.items():
            given = shared if method.prefills_densely else _Shared(shared.requests, None, shared.full)
            self._attempt([item], partial(self._decode, generator, given, batch, item, method))

    def _decode(
        self, generator: Generator, shared: _Shared, batch: Sequence[Sample], item: _Todo, method: AttentionMethod
    ) -> None:
        """Decode and score a batch for one cell, and store the records that it lacks."""
        if shared.prompt is None:
            completions = generator.run(shared.requests, method)
        else:
            completions = generator.decode(shared.prompt, method)
        full: Sequence[Completion | None] = shared.full or [None] * len(batch)
        records = [
            item.line.variant.scored(item.cell, sample, completion, method, reference)
            for sample, completion, reference in zip(batch, completions, full, strict=True)
        ]
        missing = item.scores(batch)
        item.line.store.add(*(record for record in records if record.index in missing))

    def _attempt(self, items: Sequence[_Todo], work: Callable[[], T]) -> T | None:
        """Do some work; where it fails with an error of the cells, close them and return ``None``."""
        failure: Exception
        try:
            return work()
        except Exception as error:
            failure = error
        # Outside the handler nothing but the error itself refers to the frames that hold its tensors.
        self._close(items, failure)
        return None

    def _close(self, items: Sequence[_Todo], error: Exception) -> None:
        """Turn an error that belongs to the cells into their status; raise any other."""
        status = status_of(error)
        if status is None:
            raise error
        for line, cell in items:
            line.store.add(line.variant.closed(cell, status, str(error)))
        if status == "oom":
            free_memory(self.job.device, error)

    def _report(self, todo: Sequence[_Todo]) -> None:
        """Say for each cell its samples and mean score or its status, and about how long the rest takes."""
        self.finished += len(todo)
        for line, cell in todo:
            found = line.store.of(cell)
            scores = [record.score for record in found if record.score is not None]
            outcome = f"n={len(scores)}" + (f" mean={fmean(scores):.4f}" if scores else "")
            if late := sum(record.status == "timeout" for record in found):
                outcome += f" timeouts={late}"
            if found and found[0].index < 0:
                outcome = f"{found[0].status}: {found[0].reason}"
            _say(f"{line.variant.name} {cell.task} context={cell.context} budget={cell.budget.text} {outcome}")
        rest = self._elapsed / self.finished * (self.left - self.finished)
        _say(f"  {self.finished}/{self.left} cells, {self._elapsed:.0f} s, about {rest:.0f} s left")

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def _where(self) -> str:
        return f"{self.job.model}/{self.job.suite}"


def _prefilled(
    generator: Generator, task: Task, requests: Sequence[Request], methods: Sequence[AttentionMethod]
) -> _Shared:
    """Prefill a batch for all methods that read a prompt densely; run Full first where the task compares with it."""
    if not methods:
        return _Shared(requests)
    prompt = generator.prefill(requests, methods)
    if not task.against_full:
        return _Shared(requests, prompt)
    full = full_run(generator, prompt)
    prompt = compared_prompt(prompt, full)
    return _Shared(prompt.requests, prompt, full)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
