"""One job: a model, a method's label and a suite, with everything that is fixed while its cells run."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import read_config, resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, resolve_dtype, sm_clock_mhz
from longdecode.engine.errors import ContextLimitError, GateError, MarkTimeoutError, UnsupportedCellError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance
from longdecode.evals.cells import Cell
from longdecode.evals.hashing import file_hashes
from longdecode.evals.records import Provenance, Record, Status
from longdecode.evals.run_config import RunConfig
from longdecode.evals.tasks.base import Sample, Score, Task
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.tokenizing import TextTokenizer, eos_ids, load_tokenizer
from longdecode.methods.registry import get_method


class Job:
    """Names resolved to objects; the model is loaded when the first batch needs it.

    Args:
        config: the run.
        model: a key of ``config.models``.
        label: a key of ``config.methods``.
        suite: a key of ``config.suites``.
        device: the device leased for this job.
    """

    def __init__(self, config: RunConfig, model: str, label: str, suite: str, device: torch.device):
        self.config = config
        self.model = model
        self.label = label
        self.suite = suite
        self.spec = config.suites[suite]
        self.method_spec = config.methods[label]
        self.params = self.method_spec.params_of(model)
        self.device = device
        self.dtype = resolve_dtype(config.dtype, device)
        self.folder = resolve_checkpoint(config.models[model].path, config.models[model].revision)
        self.model_config = read_config(self.folder)
        self.code_hash = provenance.code_hash(self.method_spec.method)
        self.model_hash = provenance.checkpoint_hash(self.folder)

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

    @property
    def cells(self) -> list[Cell]:
        """Every cell, context by context, task by task, budget by budget."""
        return [
            Cell(task, context, budget)
            for context in self.spec.contexts
            for task in self.spec.tasks
            for budget in self.config.budgets_of(self.label)
        ]

    @property
    def sample_counts(self) -> dict[str, int]:
        """Samples of a cell by task: the problems asked for, times the draws of each."""
        return {name: self.spec.samples * self.task(name).samples_per_problem for name in self.spec.tasks}

    @property
    def fingerprint(self) -> str:
        """Hash of all that determines a sample's numbers, other than the cell and the sample's index.

        The number of samples is among it: it fixes which samples share the last batch.
        """
        parts = {
            "profile": self.config.profile,
            "model": [self.model, self.model_hash],
            "method": [self.label, self.method_spec.method, self.params],
            "method files": file_hashes(self.method_spec.files_of(self.model)),
            "suite": [self.suite, self.spec.samples, self.spec.batch],
            "seed": self.config.seed,
            "device": [device_name(self.device), str(self.dtype)],
            "data": {name: str(folder) for name, folder in self.config.data.items()},
            "code": self.code_hash,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def task(self, name: str) -> Task:
        """The task of this name, with the run's data."""
        return get_task(name, self.config.data)

    def samples(self, task: Task, context: int) -> list[Sample]:
        """All samples of a task at a context.

        Raises:
            ContextLimitError: the model was not trained for this context.
            UnsupportedCellError: the task goes through a chat template and the model has none, or it does not fit the
                context.
            DataUnavailableError: the task's data is not here.
        """
        if context > self.model_config.max_positions:
            limit = self.model_config.max_positions
            raise ContextLimitError(f"context {context} is over the model's limit of {limit} tokens")
        if task.chat:
            self.tokenizer.chat_text("")
        return task.samples(context, self.spec.samples, self.config.seed, self.tokenizer)

    def generator(self, task: Task) -> Generator:
        """The generator for a task: greedy, or sampling where the task asks for it."""
        return Generator(self.decoder, Sampling(temperature=task.temperature, top_p=task.top_p))

    def request(self, task: Task, context: int, sample: Sample) -> Request:
        """The sample in token ids; sampled tasks get noise of their own for each sample."""
        seed = hashlib.sha256(f"{task.name}/{context}/{self.config.seed}/{sample.index}".encode()).digest()
        return Request(
            prompt_ids=self.tokenizer.prompt_ids(sample.prompt, task.chat),
            max_new_tokens=sample.max_new_tokens,
            forced_ids=self.tokenizer.encode(sample.forced),
            stop_ids=self._stop_ids(sample.stop) | (self._eos_ids if task.stop_at_eos else frozenset()),
            seed=int.from_bytes(seed[:4], "big"),
            top_tokens=task.full_top_tokens,
        )

    def method(self, budget_tokens: int | None) -> AttentionMethod:
        """The method at a budget.

        Raises:
            UnsupportedCellError: the method cannot honour the budget on this model.
        """
        method = get_method(self.method_spec.method)
        return method.from_budget(budget_tokens, self.model_config, **self.params)

    def provenance(self, samples: Sequence[Sample]) -> Provenance:
        """Where the numbers of one group of cells come from."""
        texts = [text for sample in samples for text in (sample.prompt, sample.forced, repr(sample.meta))]
        return provenance.collect(
            code=self.code_hash,
            model=self.model_hash,
            data=provenance.hash_texts(texts),
            device=self.device,
            dtype=self.dtype,
            clock_mhz=self.clock_mhz,
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
        """Mark one completion, against Full's where one is given.

        One that cannot be marked in time is a record of status ``timeout``, without a score.

        Raises:
            GateError: the score is not a finite number, so the method computed nonsense.
        """
        text = self.tokenizer.decode(completion.output_ids)
        nll = tuple(-logprob for logprob in completion.forced_logprobs)
        score: Score | None = None
        reason: str | None = None
        try:
            score = task.score(sample, text, nll) if full is None else task.compare(sample, completion, full)
        except MarkTimeoutError as error:
            reason = str(error)
        if score is not None and not all(map(math.isfinite, (score.value, *score.parts))):
            raise GateError(f"sample {sample.index}: the score is {score.value}, not a finite number")
        traffic = method.traffic_per_token(cell.context, self.dtype.itemsize)
        return self._record(
            task,
            cell,
            origin,
            sample_index=sample.index,
            status="timeout" if score is None else "ok",
            reason=reason,
            prompt_sha256=provenance.hash_texts([sample.prompt, sample.forced]),
            output_ids=list(completion.output_ids),
            output_text=text,
            score=score.value if score else None,
            parts=list(score.parts) if score else None,
            read_tokens_mean=completion.read_tokens_mean,
            read_tokens_sparse=completion.read_tokens_sparse,
            kv_bytes_per_step=traffic.kv_bytes,
            metadata_bytes_per_step=traffic.metadata_bytes,
            finish_reason=completion.finish_reason,
            truncated=completion.finish_reason == "length" if task.stop_at_eos and self._eos_ids else None,
            prefill_ms=completion.prefill_ms,
            decode_ms=completion.decode_ms,
            decode_steps=completion.decode_steps,
        )

    def closed(self, task: Task, cell: Cell, status: Status, reason: str, origin: Provenance) -> Record:
        """The one record of a cell that could not run."""
        return self._record(task, cell, origin, sample_index=-1, status=status, reason=reason)

    def _record(self, task: Task, cell: Cell, origin: Provenance, **values: Any) -> Record:
        return Record(
            profile=self.config.profile,
            model=self.model,
            method=self.method_spec.method,
            label=self.label,
            params=self.params,
            suite=self.suite,
            task=task.name,
            task_version=task.version,
            metric=task.metric,
            unit=task.unit,
            higher_is_better=task.higher_is_better,
            data_source=task.data_source,
            budget=cell.budget.text,
            budget_tokens=cell.budget.tokens(cell.context),
            context=cell.context,
            batch=self.spec.batch,
            seed=self.config.seed,
            provenance=origin,
            **values,
        )

    @functools.cached_property
    def _eos_ids(self) -> frozenset[int]:
        return eos_ids(self.folder)

    def _stop_ids(self, stop: str | None) -> frozenset[int]:
        if stop is None:
            return frozenset()
        ids = self.tokenizer.encode(stop)
        if len(ids) != 1:
            raise UnsupportedCellError(f"the stop text {stop!r} is {len(ids)} tokens of {self.model}; one is needed")
        return frozenset(ids)


def journal_path(output: Path) -> Path:
    """The journal of a job: ``records`` in the path of its output replaced by ``journal``, else beside the output."""
    parts = list(output.with_suffix(".jsonl").parts)
    if "records" in parts:
        parts[len(parts) - 1 - parts[::-1].index("records")] = "journal"
    return Path(*parts)
