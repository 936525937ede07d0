"""One quality job: a model and a suite, with all that is fixed while the cells of its labels run."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import read_config, resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, resolve_dtype, sm_clock_mhz
from longdecode.engine.errors import (
    CheckpointError,
    ContextLimitError,
    DataUnavailableError,
    GateError,
    ScoreTimeoutError,
    UnsupportedCellError,
)
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance
from longdecode.evals.cells import Cell
from longdecode.evals.equal_bytes import NativeBudgets
from longdecode.evals.hashing import file_hashes, hash_texts, quality_code_hash
from longdecode.evals.records import Provenance, Record, Status
from longdecode.evals.run_config import RunConfig
from longdecode.evals.tasks.base import Sample, Score, Task
from longdecode.evals.tasks.question import encoded
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.tokenizing import TextTokenizer, eos_ids, load_tokenizer
from longdecode.methods.registry import get_method


class QualityJob:
    """The objects that all labels share; the model is loaded when the first batch needs it.

    Args:
        config: the run.
        model: a key of ``config.models``.
        suite: a key of ``config.suites``.
        device: the device leased for this job.
    """

    def __init__(self, config: RunConfig, model: str, suite: str, device: torch.device):
        self.config = config
        self.model = model
        self.suite = suite
        self.spec = config.suites[suite]
        self.device = device
        self.dtype = resolve_dtype(config.dtype, device)
        self.failure: CheckpointError | None = None
        try:
            self.folder = resolve_checkpoint(config.models[model].path, config.models[model].revision)
            self.model_config = read_config(self.folder)
            self.model_hash = provenance.checkpoint_hash(self.folder)
        except CheckpointError as error:
            self.failure, self.model_hash = error, "unreadable"

    @functools.cached_property
    def decoder(self) -> Decoder:
        """The model on the job's device."""
        return load_decoder(self.folder, device=self.device, dtype=self.dtype)

    @functools.cached_property
    def tokenizer(self) -> TextTokenizer:
        """The model's tokenizer."""
        return load_tokenizer(self.folder)

    @functools.cached_property
    def clock_mhz(self) -> int | None:
        """The GPU's clock when the job began; asking for it starts a process, so it is asked for once."""
        return sm_clock_mhz(self.device)

    @functools.cached_property
    def eos_ids(self) -> frozenset[int]:
        """The checkpoint's end-of-sequence and end-of-turn tokens."""
        return eos_ids(self.folder, self.tokenizer)

    @functools.cached_property
    def tasks(self) -> dict[str, Task]:
        """The suite's tasks by name, with the run's data."""
        return {name: get_task(name, self.config.data) for name in self.spec.tasks}

    @functools.cached_property
    def sample_counts(self) -> dict[str, int]:
        """Samples of a cell by task: the problems asked for, times the draws of each."""
        return {name: self.spec.samples * task.samples_per_problem for name, task in self.tasks.items()}

    def samples(self, task: Task, context: int) -> list[Sample]:
        """Make all samples of a task at a context.

        Raises:
            CheckpointError: the checkpoint cannot be read.
            ContextLimitError: the model was not trained for this context.
            UnsupportedCellError: the task goes through a chat template and the model has none, or it does not fit the
                context.
            DataUnavailableError: the task's data is not here, or holds no sample.
        """
        if self.failure is not None:
            raise self.failure
        if context > self.model_config.max_positions:
            limit = self.model_config.max_positions
            raise ContextLimitError(f"context {context} is over the model's limit of {limit} tokens")
        if task.chat:
            self.tokenizer.chat_text("text")
        made = task.samples(context, self.spec.samples, self.config.seed, self.tokenizer)
        if not made:  # a cell without a record would be missing from every table
            raise DataUnavailableError(f"{task.name}: its data has no sample")
        return made

    def batches(self, samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
        """Cut the samples into batches of fixed composition, so that a resumed run repeats the first one's numbers."""
        for start in range(0, len(samples), self.spec.batch):
            yield samples[start : start + self.spec.batch]

    def generator(self, task: Task) -> Generator:
        """Make the generator for a task: greedy, or sampling where the task asks for it."""
        return Generator(self.decoder, Sampling(temperature=task.temperature, top_p=task.top_p))

    def request(self, task: Task, context: int, sample: Sample) -> Request:
        """Encode a sample in token ids; sampled tasks get noise of their own for each sample."""
        seed = hashlib.sha256(f"{task.name}/{context}/{self.config.seed}/{sample.index}".encode()).digest()
        prompt_ids, forced_ids = encoded(sample, task.chat, self.tokenizer)
        return Request(
            prompt_ids=prompt_ids,
            max_new_tokens=sample.max_new_tokens,
            forced_ids=forced_ids,
            stop_ids=self._stop_ids(sample.stop) | (self.eos_ids if task.stop_at_eos else frozenset()),
            seed=int.from_bytes(seed[:4], "big"),
            top_tokens=task.full_top_tokens,
        )

    def _stop_ids(self, stop: str | None) -> frozenset[int]:
        if stop is None:
            return frozenset()
        ids = self.tokenizer.encode(stop)
        if len(ids) != 1:
            raise UnsupportedCellError(f"the stop text {stop!r} is {len(ids)} tokens of {self.model}; one is needed")
        return frozenset(ids)


class LabelJob:
    """One label of a job: its method, its cells and how its records are put together.

    Args:
        job: the model and suite.
        label: a key of ``config.methods``.
    """

    def __init__(self, job: QualityJob, label: str):
        self.job = job
        self.label = label
        self.spec = job.config.methods[label]
        self.params = self.spec.params_of(job.model)

    @functools.cached_property
    def cells(self) -> list[Cell]:
        """Every cell, context by context, task by task, budget by budget; none on a model that the label leaves out."""
        if not self.spec.runs_on(self.job.model):
            return []
        return [
            Cell(task, context, budget)
            for context in self.job.spec.contexts
            for task in self.job.spec.tasks
            for budget in self.job.config.budgets_of(self.label)
        ]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all settings that determine a sample's numbers, other than its cell and index.

        The number of samples is among them: it fixes which samples share the last batch. Code is not: each record has
        the hash of its own.
        """
        job = self.job
        parts = {
            "profile": job.config.profile,
            "model": [job.model, job.model_hash],
            "method": [self.label, self.spec.method, self.params],
            "method files": file_hashes(self.spec.files_of(job.model)),
            "suite": [job.suite, job.spec.samples, job.spec.batch],
            "seed": job.config.seed,
            "device": [device_name(job.device), str(job.dtype)],
            "data": {name: str(folder) for name, folder in job.config.data.items()},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @functools.cached_property
    def code_hashes(self) -> dict[str, str]:
        """By task, the hash of the code that can change a score of this label."""
        return {name: quality_code_hash(self.spec.method, task.code_module) for name, task in self.job.tasks.items()}

    def method(self, budget_tokens: int | None) -> AttentionMethod:
        """Build the method at a budget.

        Raises:
            UnsupportedCellError: the method cannot honour the budget on this model.
        """
        method = get_method(self.spec.method)
        return method.from_budget(budget_tokens, self.job.model_config, **self.params)

    def method_at(self, cell: Cell) -> AttentionMethod:
        """Build the method of a cell.

        Raises:
            UnsupportedCellError: the method cannot honour the budget at this context, or no budget of its reads the
                bytes asked for.
        """
        method = self.method(self.budget_tokens(cell))
        method.refuse_context(cell.context)
        return method

    def budget_tokens(self, cell: Cell) -> int | None:
        """Return a cell's budget in tokens; of a budget in bytes, the method's native one."""
        if not cell.budget.of_bytes:
            return cell.budget.tokens(cell.context)
        return self._native[cell.budget.text, cell.context]

    @functools.cached_property
    def _native(self) -> NativeBudgets:
        return NativeBudgets(self.method, self.job.model_config, self.job.dtype.itemsize)

    def provenance(self, task: Task, samples: Sequence[Sample]) -> Provenance:
        """Collect the provenance of one group of cells."""
        texts = [text for sample in samples for text in (sample.prompt, sample.forced, repr(sample.meta))]
        return provenance.collect(
            code=self.code_hashes[task.name],
            model=self.job.model_hash,
            data=hash_texts(texts),
            device=self.job.device,
            dtype=self.job.dtype,
            clock_mhz=self.job.clock_mhz,
        )

    def scored(
        self,
        task: Task,
        cell: Cell,
        sample: Sample,
        completion: Completion,
        method: AttentionMethod,
        origin: Provenance,
        full: Completion | None = None,
    ) -> Record:
        """Score one completion, against Full's where one is given.

        One that cannot be scored in time is a record of status ``timeout``, without a score.

        Raises:
            GateError: the score is not a finite number, so the method computed nonsense.
        """
        text = self.job.tokenizer.decode(completion.output_ids)
        nll = tuple(-logprob for logprob in completion.forced_logprobs)
        score: Score | None = None
        reason: str | None = None
        try:
            score = task.score(sample, text, nll) if full is None else task.compare(sample, completion, full)
        except ScoreTimeoutError as error:
            reason = str(error)
        if score is not None and not all(map(math.isfinite, (score.value, *score.parts))):
            raise GateError(f"sample {sample.index}: the score is {score.value}, not a finite number")
        traffic = method.traffic_per_token(cell.context, self.job.dtype.itemsize)
        measures = {
            "kv_tokens_read": completion.read_tokens_mean,
            "kv_tokens_read_sparse": completion.read_tokens_sparse,
            "kv_bytes_per_step": traffic.kv_bytes,
            "metadata_bytes_per_step": traffic.metadata_bytes,
            "decode_steps": completion.decode_steps,
            "prefill_ms": completion.prefill_ms,
            "decode_ms": completion.decode_ms,
        }
        if score is not None:
            measures |= score.measures
        if task.stop_at_eos and self.job.eos_ids:
            measures["truncated"] = completion.finish_reason == "length"
        return self._record(
            task,
            cell,
            origin,
            sample_index=sample.index,
            status="timeout" if score is None else "ok",
            reason=reason,
            prompt_sha256=hash_texts([sample.prompt, sample.forced]),
            output_ids=list(completion.output_ids),
            output_text=text,
            score=score.value if score else None,
            parts=list(score.parts) if score else None,
            finish_reason=completion.finish_reason,
            measures=measures,
        )

    def closed(self, task: Task, cell: Cell, status: Status, reason: str, origin: Provenance) -> Record:
        """Make the one record of a cell that could not run."""
        try:
            return self._record(task, cell, origin, sample_index=-1, status=status, reason=reason)
        except UnsupportedCellError:  # no native budget reads the bytes asked for
            return self._record(task, cell, origin, None, sample_index=-1, status=status, reason=reason)

    def _record(self, task: Task, cell: Cell, origin: Provenance, *tokens: int | None, **values: Any) -> Record:
        return Record(
            profile=self.job.config.profile,
            model=self.job.model,
            method=self.spec.method,
            variant=self.label,
            params=self.params,
            suite=self.job.suite,
            task=task.name,
            task_version=task.version,
            question=task.question,
            metric=task.metric,
            unit=task.unit,
            higher_is_better=task.higher_is_better,
            data_source=task.data_source,
            budget=cell.budget.text,
            budget_tokens=tokens[0] if tokens else self.budget_tokens(cell),
            context=cell.context,
            batch=self.job.spec.batch,
            seed=self.job.config.seed,
            provenance=origin,
            **values,
        )
