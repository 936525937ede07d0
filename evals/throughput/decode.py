"""The decode bench: one model, every context and batch that fits, each method in pairs with our own full attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ContextLimitError, GateError
from longdecode.engine.kv_cache import KVCache
from longdecode.evals.failures import free_memory
from longdecode.evals.records import SpeedRecord
from longdecode.evals.throughput.ceilings import sharing_cache, with_selection_given
from longdecode.evals.throughput.cells import SpeedCell, SpeedLedger
from longdecode.evals.throughput.decode_cells import FULL, HF_LABELS, Labels
from longdecode.evals.throughput.launches import recorded
from longdecode.evals.throughput.models import TimedModel
from longdecode.evals.throughput.spec import CEILING_METHODS, DecodeSpec
from longdecode.evals.throughput.speed_job import SpeedJob
from longdecode.evals.throughput.step_block import (
    correction_block,
    fill_cache,
    projections_block,
    set_lengths,
    step_block,
    tensors_of,
)
from longdecode.evals.throughput.timing import Block
from longdecode.kernels.dispatch import kernel_path
from longdecode.methods.conformance import FAST_PATH_CHECKS
from longdecode.methods.conformance_bench import make_bench

PREFILL_CHUNK_TOKENS = 16384
SETUP_ROUNDS = 3
PREFILL_ROUNDS = 2


class DecodeBench:
    """Times the open cells of a job; a cell that cannot run ends as a status and the rest goes on."""

    def __init__(self, job: SpeedJob, ledger: SpeedLedger, model: TimedModel, spec: DecodeSpec):
        self.job = job
        self.ledger = ledger
        self.model = model
        self.spec = spec
        self.labels = Labels(job.run, job.name)
        self._gates: dict[str, str | None] = {}

    def run(self) -> None:
        """All cells, one context and batch at a time, which share one cache; the stock loop last.

        A graph of the stock loop that cannot be captured must not stand in the way of what follows.
        """
        stock = [cell for cell in self.ledger.cells if cell.label in HF_LABELS]
        ours = [cell for cell in self.ledger.cells if cell.label not in HF_LABELS]
        for group in (ours, stock):
            for context, batch in dict.fromkeys((cell.context, cell.batch) for cell in group):
                wanted = self.ledger.open(cell for cell in group if (cell.context, cell.batch) == (context, batch))
                if wanted:
                    self._place(context, batch, wanted)
                    free_memory(self.job.device)

    def _place(self, context: int, batch: int, cells: Sequence[SpeedCell]) -> None:
        """Everything at one context and batch: the cache and the reference are made once."""
        failure: Exception | None = None
        try:
            if self.model.limit is not None and context > self.model.limit:
                raise ContextLimitError(
                    f"context {context} is over the checkpoint's limit of {self.model.limit} tokens"
                )
            cache = self.model.decoder.new_cache(batch, context)
            fill_cache(cache, context, self.job.run.seed)
            place = _Place(self, cache, context, batch)
        except Exception as error:
            failure = error
        if failure is not None:
            self._close(cells, failure)
            return
        for cell in cells:
            failure = None
            try:
                self._gate(cell)
                self.ledger.add(place.measure(cell))
            except Exception as error:
                failure = error
            if failure is not None:
                self._close([cell], failure)
            free_memory(self.job.device)

    def _gate(self, cell: SpeedCell) -> None:
        """Once a label and job: the kernels in force give this method the numbers of their definitions.

        Where plain torch is in force there is nothing to hold against it. The whole conformance suite stands before the
        quality records.

        Raises:
            GateError: a check failed.
        """
        if cell.label in (*CEILING_METHODS, *HF_LABELS, "no_attention", "projections"):
            return
        if kernel_path(self.job.device, torch.float32) == "naive":
            return
        if cell.label not in self._gates:
            self._gates[cell.label] = None
            try:
                bench = make_bench(
                    cell.subject, self.job.device, dict(self.labels.params(cell.label)), dtype=torch.float32, seed=0
                )
                for check in FAST_PATH_CHECKS:
                    check(bench)
            except GateError as error:
                self._gates[cell.label] = str(error)
        if (failure := self._gates[cell.label]) is not None:
            raise GateError(failure)

    def _close(self, cells: Sequence[SpeedCell], error: Exception) -> None:
        status = self.job.status_or_raise(error)
        if status is not None:
            for cell in cells:
                self.ledger.add(self.job.closed(cell, self.model.weights, status, str(error)))
        free_memory(self.job.device, error)


class _Place:
    """One context and batch: the shared cache, and full attention as the reference of every pair."""

    def __init__(self, bench: DecodeBench, cache: KVCache, context: int, batch: int):
        self.bench = bench
        self.job, self.model, self.spec = bench.job, bench.model, bench.spec
        self.cache, self.context, self.batch = cache, context, batch
        self._start_watching_memory()
        with recorded(self.job.device) as self.full_launches:
            self.full = self._block(bench.labels.build(FULL, None, self.model.config), FULL)
        self.full_peak = self._peak(self.full)

    def measure(self, cell: SpeedCell) -> SpeedRecord:
        """Time one cell."""
        if cell.label in HF_LABELS:
            # transformers is slow to import and only these cells need it.
            from longdecode.evals.throughput.hf_full import measure_stock_loop

            return measure_stock_loop(self.job, self.model, self.full, cell, self.spec.rounds)
        if cell.stage == "prefill":
            return self._prefill(cell)
        if cell.stage == "setup":
            return self._setup(cell)
        if cell.stage == "projections":
            with recorded(self.job.device) as launches:
                block = projections_block(self.model.decoder, self.batch)
            samples = self.job.time(block, self.full, self.spec.rounds)
            return self.job.timed(
                cell, self.model.weights, samples, FULL, bytes_min=self.model.read_bytes, launch=launches.as_record()
            )
        if cell.stage == "correction":
            return self._correction(cell)
        return self._step(cell)

    def _correction(self, cell: SpeedCell) -> SpeedRecord:
        """One correction of the label's cache: every sequence's keys and values are read whole, once."""
        method = self.bench.labels.build(cell.label, cell.budget_tokens, self.model.config)
        with recorded(self.job.device) as launches:
            block = correction_block(self.model.decoder, self.cache, method, cell.label, self.context)
        samples = self.job.time(block, self.full, self.spec.rounds)
        read = self.context * self.model.config.kv_bytes_per_token(self.model.decoder.dtype.itemsize)
        record = self.job.timed(
            cell, self.model.weights, samples, FULL, bytes_min=self.model.read_bytes + self.batch * read,
            launch=launches.as_record(),
        )  # fmt: skip
        correction = method.correction
        said = {} if correction is None else {"correction": correction.mode, "correction_period": correction.period}
        return record.model_copy(update={"params": {**cell.params, **said}})

    def _step(self, cell: SpeedCell) -> SpeedRecord:
        method = self.bench.labels.build(cell.label, cell.budget_tokens, self.model.config)
        self._start_watching_memory()
        if cell.label == FULL:
            # Full against itself: how far from 1 a ratio comes out when nothing differs.
            block, launches, peak = self.full, self.full_launches, self.full_peak
        else:
            with recorded(self.job.device) as launches:
                given = with_selection_given(method) if cell.stage == "no_selection" else method
                block = self._block(given, cell.label)
            peak = self._peak(block)
        samples = self.job.time(block, self.full, self.spec.rounds)
        traffic = method.traffic(self.context, self.model.decoder.dtype.itemsize)
        read = traffic.kv_bytes if cell.stage == "no_selection" else traffic.total_bytes
        return self.job.timed(
            cell, self.model.weights, samples, FULL, bytes_min=self.model.read_bytes + self.batch * read,
            expected_bytes=self.model.resident_bytes + _cache_of(block).nbytes(), peak_bytes=peak,
            launch=launches.as_record(),
        )  # fmt: skip

    def _setup(self, cell: SpeedCell) -> SpeedRecord:
        """What the method does once between prefill and the first step, such as building page metadata."""
        method = sharing_cache(self.bench.labels.build(cell.label, cell.budget_tokens, self.model.config))

        @torch.no_grad()
        def start() -> None:
            method.start(self.cache)

        block = Block(cell.label, start, reset=lambda: set_lengths(self.cache, self.context - self.spec.steps))
        return self.job.timed(cell, self.model.weights, self.job.time(block, None, SETUP_ROUNDS), None)

    def _prefill(self, cell: SpeedCell) -> SpeedRecord:
        """Dense prefill of random tokens into the shared cache, LM head of the last row included."""
        generator = torch.Generator().manual_seed(self.job.run.seed)
        vocab = self.model.config.vocab_size
        prompts = [torch.randint(vocab, (self.context,), generator=generator) for _ in range(self.batch)]

        def prefill() -> None:
            self.model.decoder.prefill(prompts, self.cache, PREFILL_CHUNK_TOKENS)

        samples = self.job.time(Block(FULL, prefill), None, PREFILL_ROUNDS)
        return self.job.timed(cell, self.model.weights, samples, None)

    def _block(self, method: AttentionMethod, label: str) -> Block:
        return step_block(self.model.decoder, self.cache, method, label, self.context, self.spec.steps)

    def _start_watching_memory(self) -> None:
        if self.job.device.type == "cuda":
            torch.cuda.synchronize(self.job.device)
            torch.cuda.reset_peak_memory_stats(self.job.device)
            self._before = torch.cuda.memory_allocated(self.job.device)

    def _peak(self, block: Block) -> int | None:
        """The allocator's peak while the block was made, as if nothing but weights and its own cache stood beside it.

        What only other blocks hold is left out: the pair shares a device that a user's run would have alone.
        """
        if self.job.device.type != "cuda":
            return None
        torch.cuda.synchronize(self.job.device)
        own = torch.cuda.max_memory_allocated(self.job.device) - self._before
        shared = self.cache.nbytes() if _shares_memory(_cache_of(block), self.cache) else 0
        return self.model.resident_bytes + shared + own


def _cache_of(block: Block) -> KVCache:
    """The cache that a step block decodes in."""
    cache: KVCache = block.keep[0].state.cache
    return cache


def _shares_memory(cache: KVCache, prompt: KVCache) -> bool:
    """Whether a cache holds keys of the shared one, as itself or as a view."""
    if cache is prompt:
        return True
    held = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(cache)}
    return prompt.k.untyped_storage().data_ptr() in held
