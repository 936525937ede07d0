"""Score a suite: contexts, tasks, batches; one prefill serves all variants and budgets, each batch is stored.

With ``refill`` the rows of a batch end one by one and each is stored as it ends; every variant then prefills by itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import lease_gpu, resolve_device
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Completion, Generator, Prompt, Request
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.gate import Gate, attempt, gate_folder, status_of
from longdecode.evals.quality_job import QualityJob, Variant
from longdecode.evals.records import QualityCell, Status
from longdecode.evals.run_config import RunConfig
from longdecode.evals.tasks.base import Sample, Task
from longdecode.methods.registry import get_method

T = TypeVar("T")


def evaluate_suite(
    config: RunConfig, model: str, suite: str, outputs: Mapping[str, Path], *, gated: bool = True
) -> None:
    """Run every cell of some variants on one model and suite and write their records.

    A killed run resumes: records on disk are kept where their fingerprint is today's. Batches have a fixed composition,
    or, where they are refilled, fixed groups of prompts on which a row depends: the records are those of an
    uninterrupted run. A cell that cannot run ends as a status; the others go on.

    Args:
        model, suite: keys of ``config.models`` and ``config.suites``.
        outputs: the parquet file of each variant.
        gated: ask for conformance first; tuning, whose scores stand in no table, does without.

    Raises:
        ConfigError: a knob was tuned on one of the prompts.
        CheckpointError: the model cannot be loaded.
        LockHeldError: another process runs one of the variants.
    """
    with lease_gpu(resolve_device(config.device)) as device, ExitStack() as stack:
        job = QualityJob(config, model, suite, device)
        if job.failure is not None and any(b.of_bytes for name in outputs for b in config.budgets_of(name)):
            raise job.failure  # a budget in bytes is solved for the model's shape
        variants = dict[str, Variant]()
        for name, output in outputs.items():
            asked = gated and config.methods[name].runs_on(model)
            refusal = Gate(config, device, gate_folder(output)).refusal(name, model) if asked else None
            variants[name] = Variant(job, name, output, refusal)
            stack.enter_context(variants[name].store)
        _Evaluation(job, variants).run()
        for variant in variants.values():
            variant.store.finish()


class _Shared(NamedTuple):
    """State that the cells of a batch share: a prefilled prompt, and Full's run over it where a task compares."""

    requests: Sequence[Request]
    prompt: Prompt | None = None
    full: Sequence[Completion] | None = None


class _Evaluation:
    """One pass over the cells that are not done."""

    def __init__(self, job: QualityJob, variants: Mapping[str, Variant]):
        self.job, self.variants = job, variants
        self.tuned_on = frozenset[str]()
        if job.config.tuning.records and job.failure is None:  # other runs do not import this
            from longdecode.evals.fairness import tuned_prompts

            self.tuned_on = tuned_prompts(job.config, job.model, job.model_hash)
        self.cells = [cell for variant in variants.values() for cell in variant.store.open(variant.store.cells)]
        self.where = f"{job.model}/{job.suite}"
        self.started, self.finished = time.monotonic(), 0

    def run(self) -> None:
        """Run task by task at each context; variants and budgets share samples."""
        known = sum(len(variant.store.cells) for variant in self.variants.values()) - len(self.cells)
        _say(f"{self.where}: {', '.join(self.variants)}: {len(self.cells)} cells to run, {known} known")
        for context in self.job.spec.contexts:
            for task in self.job.tasks.values():
                if cells := [cell for cell in self.cells if (cell.task, cell.context) == (task.name, context)]:
                    self._task(task, context, cells)
                    self._report(cells)

    def _task(self, task: Task, context: int, cells: Sequence[QualityCell]) -> None:
        """Close what cannot run at all, then take the samples batch by batch."""
        samples = self._attempt(cells, lambda: self.job.samples(task, context)) or []
        for sample in samples if self.tuned_on else ():
            if hash_texts([sample.prompt, sample.forced]) in self.tuned_on:
                raise ConfigError(
                    f"{task.name} at {context} tokens, sample {sample.index}: knobs were tuned on this prompt, so its "
                    "score would flatter them; choose another tuning.seed or other tuning.contexts"
                )
        for cell in cells if samples else ():
            if (refusal := self.variants[cell.variant].refusal) and (status := status_of(refusal)):
                self._close([cell], status, str(refusal))
        if self.job.spec.refill:
            cells = [cell for cell in cells if self._attempt([cell], partial(self._by_batch, samples, cell))]
        size = self.job.spec.batch  # of fixed composition, so that a resumed run repeats the first one's numbers
        for start in range(0, len(samples), size):
            batch = samples[start : start + size]
            if wanting := [cell for cell in cells if self._missing(cell, batch)]:
                self._batch(task, context, batch, wanting)
                if start + size < len(samples):
                    done = f"{start + len(batch)} of {len(samples)} samples, {self._elapsed:.0f} s"
                    _say(f"  {self.where} {task.name} context={context}: {done}")

    def _batch(self, task: Task, context: int, batch: Sequence[Sample], cells: Sequence[QualityCell]) -> None:
        """Prefill a batch once and decode it for every cell that wants it; the prompt is dropped on return.

        A method with a prefill rule of its own gets a prefill of its own, and so does each cell where the shared
        prompt does not fit the device: a method's own cache may be smaller.
        """
        requests = self._attempt(cells, lambda: [self.job.request(task, context, sample) for sample in batch])
        generator = self._attempt(cells, lambda: self.job.generator(task))
        if requests is None or generator is None:
            return
        built = {cell: self._attempt([cell], partial(self.variants[cell.variant].method_at, cell)) for cell in cells}
        methods = {cell: method for cell, method in built.items() if method is not None}
        dense = [method for method in methods.values() if method.prefills_densely]
        found, status, reason = attempt(partial(_prefilled, generator, task, requests, dense), self.job.device)
        if status and status != "oom":
            self._close(list(methods), status, reason)
            return
        shared = found or _Shared(requests)
        for cell, method in methods.items():
            given = shared if method.prefills_densely else shared._replace(prompt=None)
            self._attempt([cell], partial(self._decode, generator, given, batch, cell, method))

    def _decode(
        self, generator: Generator, shared: _Shared, batch: Sequence[Sample], cell: QualityCell, method: AttentionMethod
    ) -> None:
        """Decode and score a batch for one cell, and store the records that it lacks."""
        prompt, variant = shared.prompt, self.variants[cell.variant]
        completions = generator.run(shared.requests, method) if prompt is None else generator.decode(prompt, method)
        full: Sequence[Completion | None] = shared.full or [None] * len(batch)
        records = [
            variant.scored(cell, sample, completion, method, reference)
            for sample, completion, reference in zip(batch, completions, full, strict=True)
        ]
        missing = self._missing(cell, batch)
        variant.store.add(*(record for record in records if record.index in missing))

    def _by_batch(self, samples: Sequence[Sample], cell: QualityCell) -> bool:
        """Return true, and say so, where rows cannot be refilled; else score the cell and store each row as it ends."""
        variant, missing = self.variants[cell.variant], self._missing(cell, samples)
        records = variant.refilled(cell, samples, missing) if missing else ()
        if records is None:
            _say(f"  {self.where} {cell.task} {cell.variant}: compared, corrected or drafted by batch: not refilled")
            return True
        for record in records:
            variant.store.add(record)
        return False

    def _missing(self, cell: QualityCell, batch: Sequence[Sample]) -> frozenset[int]:
        return self.variants[cell.variant].store.missing(cell, [sample.index for sample in batch])

    def _attempt(self, cells: Sequence[QualityCell], work: Callable[[], T]) -> T | None:
        """Do some work; where it fails with an error of the cells, close them and return ``None``."""
        made, status, reason = attempt(work, self.job.device)
        if status:
            self._close(cells, status, reason)
        return made

    def _close(self, cells: Sequence[QualityCell], status: Status, reason: str) -> None:
        """Store the status of cells that cannot run."""
        for variant, cell in ((self.variants[cell.variant], cell) for cell in cells):
            variant.store.add(variant.closed(cell, status, reason))

    def _report(self, cells: Sequence[QualityCell]) -> None:
        """Say for each cell its samples and mean score or its status, and about how long the rest takes."""
        self.finished += len(cells)
        for cell in cells:
            found = self.variants[cell.variant].store.of(cell)
            scores = [record.score for record in found if record.score is not None]
            outcome = f"n={len(scores)}" + (f" mean={fmean(scores):.4f}" if scores else "")
            if found and found[-1].status != "ok":
                outcome += f" {found[-1].status}: {found[-1].reason}"
            _say(f"{cell.variant} {cell.task} context={cell.context} budget={cell.budget.text} {outcome}")
        left = self._elapsed / self.finished * (len(self.cells) - self.finished)
        _say(f"  {self.finished}/{len(self.cells)} cells, {self._elapsed:.0f} s, about {left:.0f} s left")

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self.started


def _prefilled(
    generator: Generator, task: Task, requests: Sequence[Request], methods: Sequence[AttentionMethod]
) -> _Shared:
    """Prefill a batch for all methods that read a prompt densely; run Full first where the task compares with it."""
    if not task.against_full:
        return _Shared(requests, generator.prefill(requests, methods) if methods else None)
    prompt = generator.prefill(requests, methods)
    full = full_run(generator, prompt)
    prompt = compared_prompt(prompt, full)
    return _Shared(prompt.requests, prompt, full)


def full_run(generator: Generator, prompt: Prompt) -> list[Completion]:
    """Decode a batch with Full attention; the prompt is left as it was."""
    return generator.decode(prompt, get_method("full").from_budget(None, generator.decoder.config))


def compared_prompt(prompt: Prompt, full: Sequence[Completion]) -> Prompt:
    """Return the same batch, asking for its first choices and for Full's likeliest tokens."""
    requests = (
        replace(request, top_tokens=min(1, request.top_tokens), compared_ids=reference.top_ids)
        for request, reference in zip(prompt.requests, full, strict=True)
    )
    return replace(prompt, requests=tuple(requests))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
