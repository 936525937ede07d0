"""One quality job: a model and a suite, with all that is fixed while the cells of its variants run."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from longdecode.engine import errors
from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import CheckpointError, UnsupportedCellError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.tokenizer import eos_ids
from longdecode.evals.budgets import native_budget
from longdecode.evals.fingerprint import cell_settings, file_hashes, hash_data, hash_texts, quality_code_hash
from longdecode.evals.model_job import ModelJob
from longdecode.evals.records import KEPT_OUTPUTS, Provenance, QualityCell, Record, Status, hash_output
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import Store
from longdecode.evals.tasks.base import Sample, Score, Task, encoded
from longdecode.evals.tasks.registry import get_task


class QualityJob(ModelJob):
    """The objects that all variants share; the model is loaded when the first batch needs it.

    Args:
        config: the run.
        model: a key of ``config.models``.
        suite: a key of ``config.suites``.
        device: the device leased for this job.
    """

    def __init__(self, config: RunConfig, model: str, suite: str, device: torch.device):
        self.suite, self.spec, self.data_hash = suite, config.suites[suite], hash_data(config, suite)
        self.tasks = {name: get_task(name, config.data, suite) for name in self.spec.tasks}
        self.failure: CheckpointError | None = None
        try:
            super().__init__(config, model, device)
            _ = self.model_hash  # a checkpoint that cannot be hashed ends the job's cells, as one that cannot be read
        except CheckpointError as error:
            self.failure, self.model_hash = error, "unreadable"

    @functools.cached_property
    def eos_ids(self) -> frozenset[int]:
        """The checkpoint's end-of-sequence and end-of-turn tokens."""
        return eos_ids(self.folder, self.tokenizer)

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
        if context > (limit := self.model_config.max_positions):
            raise errors.ContextLimitError(f"context {context} is over the model's limit of {limit} tokens")
        if task.chat:
            self.tokenizer.chat_text("text")
        made = task.samples(context, self.spec.samples, self.config.seed, self.tokenizer)
        if not made:  # a cell without a record would be missing from every table
            raise errors.DataUnavailableError(f"{task.name}: its data has no sample")
        return made

    def generator(self, task: Task) -> Generator:
        """Make the generator for a task: greedy, or sampling where the task asks for it."""
        return Generator(self.decoder, Sampling(temperature=task.temperature, top_p=task.top_p))

    def request(self, task: Task, context: int, sample: Sample) -> Request:
        """Encode a sample in token ids; sampled tasks get noise of their own for each sample."""
        seed = hashlib.sha256(f"{task.name}/{context}/{self.config.seed}/{sample.index}".encode()).digest()
        prompt_ids, forced_ids = encoded(sample, task.chat, self.tokenizer)
        stop = [] if sample.stop is None else self.tokenizer.encode(sample.stop)
        if len(stop) > 1:
            raise UnsupportedCellError(f"the stop text {sample.stop!r} is {len(stop)} tokens of {self.model}, not one")
        return Request(
            prompt_ids=prompt_ids, max_new_tokens=sample.max_new_tokens, forced_ids=forced_ids,
            stop_ids=frozenset(stop) | (self.eos_ids if task.stop_at_eos else frozenset()),
            seed=int.from_bytes(seed[:4], "big"), top_tokens=task.full_top_tokens,
        )  # fmt: skip


class Variant:
    """One variant of a job: its method, its cells, and its records: those stored, and how new ones are put together.

    Args:
        job: the model and suite.
        name: a key of ``config.methods``.
        output: the parquet file of its records.
        refusal: the error that bars it from scoring; nothing known of it holds then.
    """

    def __init__(self, job: QualityJob, name: str, output: Path, refusal: Exception | None = None):
        self.job, self.name, self.refusal = job, name, refusal
        self.spec = job.config.methods[name]
        self.params = self.spec.params_of(job.model)
        places = product(job.spec.contexts, job.spec.tasks, job.config.budgets_of(name))
        cells = [QualityCell(name, task, context, budget) for context, task, budget in places]
        self.store: Store[QualityCell, Record] = Store(
            output,
            Record,
            cells if self.spec.runs_on(job.model) else [],
            lambda cell: None if refusal else self.origin(cell).fingerprint,
            samples=lambda cell: job.spec.samples * job.tasks[cell.task].samples_per_problem,
        )

    @functools.cache  # noqa: B019
    def origin(self, cell: QualityCell) -> Provenance:
        """Return the provenance of a cell, with the fingerprint that its records have today."""
        job, place = self.job, {"task": cell.task, "context": cell.context, "budget": cell.budget.text}
        settings = cell_settings(job.config, job.model, job.suite, self.name) | place
        data = hash_texts([job.data_hash, *file_hashes(self.spec.files_of(job.model))])
        return job.provenance(settings, self._code(cell.task), data)

    @functools.cache  # noqa: B019
    def _code(self, task: str) -> str:
        return quality_code_hash(self.spec.method, self.job.tasks[task].code_module)

    @functools.cached_property
    def learned_heads(self) -> dict[str, float]:
        """Heads over one half and heads wanted, where head roles were learned."""
        if "roles" not in self.params:
            return {}
        from longdecode.methods.head_roles import learned_heads  # other methods do without

        return learned_heads(self.params["roles"])

    def method_at(self, cell: QualityCell) -> AttentionMethod:
        """Build the method of a cell.

        Raises:
            UnsupportedCellError: the method cannot honour the budget at this context, or no budget of its reads the
                bytes asked for.
        """
        return self.job.build(self.name, self.budget_tokens(cell), cell.context)

    @functools.cache  # noqa: B019
    def budget_tokens(self, cell: QualityCell) -> int | None:
        """Return a cell's budget in tokens; of a budget in bytes, the method's native one."""
        if not cell.budget.of_bytes:
            return cell.budget.tokens(cell.context)
        itemsize, build = self.job.dtype.itemsize, functools.partial(self.job.build, self.name)
        full_bytes = cell.context * self.job.model_config.kv_bytes_per_token(itemsize)
        return native_budget(build, float(cell.budget.value or 0), cell.context, full_bytes, itemsize)

    def scored(
        self,
        cell: QualityCell,
        sample: Sample,
        completion: Completion,
        method: AttentionMethod,
        full: Completion | None,
    ) -> Record:
        """Score one completion, against Full's where one is given.

        One that cannot be scored in time is a record of status ``timeout``, without a score.

        Raises:
            GateError: the score is not a finite number, so the method computed nonsense.
        """
        job, task, ids = self.job, self.job.tasks[cell.task], list(completion.output_ids)
        text = job.tokenizer.decode(completion.output_ids)
        score: Score | None = None
        reason: str | None = None
        try:
            nll = tuple(-logprob for logprob in completion.forced_logprobs)
            score = task.score(sample, text, nll) if full is None else task.compare(sample, completion, full)
        except errors.ScoreTimeoutError as error:
            reason = str(error)
        if score is not None and not all(map(math.isfinite, (score.value, *score.parts))):
            raise errors.GateError(f"sample {sample.index}: the score is {score.value}, not a finite number")
        traffic = method.traffic_per_token(cell.context, job.dtype.itemsize)
        measures = {
            "kv_tokens_read": completion.read_tokens_mean,
            "kv_tokens_read_sparse": completion.read_tokens_sparse,
            "kv_bytes_per_step": traffic.kv_bytes,
            "metadata_bytes_per_step": traffic.metadata_bytes,
            "decode_steps": completion.decode_steps,
            "prefill_ms": completion.prefill_ms,
            "decode_ms": completion.decode_ms,
            **self.learned_heads,
            **(score.measures if score else {}),
        }
        if task.stop_at_eos and job.eos_ids:
            measures["truncated"] = completion.finish_reason == "length"
        kept = sample.index < KEPT_OUTPUTS
        return self._record(
            cell, self.budget_tokens(cell), sample_index=sample.index, status="ok" if score else "timeout",
            reason=reason, prompt_sha256=hash_texts([sample.prompt, sample.forced]), output_sha256=hash_output(ids),
            output_ids=ids if kept else None, output_text=text if kept else None, measures=measures,
            score=score.value if score else None, parts=list(score.parts) if score else None,
            finish_reason=completion.finish_reason,
        )  # fmt: skip

    def refilled(
        self, cell: QualityCell, samples: Sequence[Sample], missing: Collection[int]
    ) -> Iterator[Record] | None:
        """Score the samples whose numbers are ``missing`` in rows that are refilled; yield records as rows end.

        Shapes are those of all samples. ``None`` where the batches of the task or of the method must stay together.

        Raises:
            UnsupportedCellError: as ``method_at`` and ``stream``.
        """
        from longdecode.engine.refill import can_refill, stream  # whole batches have no use for it

        job, task, method = self.job, self.job.tasks[cell.task], self.method_at(cell)
        if task.against_full or not can_refill(method):
            return None
        requests = [job.request(task, cell.context, sample) for sample in samples]
        rows = min(job.spec.batch, max(2, len(samples)))
        done = stream(job.generator(task), requests, method, rows, sorted(missing))
        return (self.scored(cell, samples[number], one, method, None) for number, one in done)

    def closed(self, cell: QualityCell, status: Status, reason: str) -> Record:
        """Make the one record of a cell that could not run."""
        try:
            tokens = self.budget_tokens(cell)
        except UnsupportedCellError:  # no native budget reads the bytes asked for
            tokens = None
        return self._record(cell, tokens, sample_index=-1, status=status, reason=reason)

    def _record(self, cell: QualityCell, budget_tokens: int | None, **values: Any) -> Record:
        job, task = self.job, self.job.tasks[cell.task]
        return Record(
            profile=job.config.profile, model=job.model, method=self.spec.method, variant=self.name,
            params=self.params, suite=job.suite, task=task.name, task_version=task.version, question=task.question,
            metric=task.metric, unit=task.unit, higher_is_better=task.higher_is_better, data_source=task.data_source,
            budget=cell.budget.text, budget_tokens=budget_tokens, context=cell.context, batch=job.spec.batch,
            seed=job.config.seed, provenance=self.origin(cell), **values,
        )  # fmt: skip
