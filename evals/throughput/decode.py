"""The decode bench: one model, every context and batch that fits, each method in pairs with our own full attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ContextLimitError, DeviceMemoryError
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.evals.failures import free_memory, status_of
from longdecode.evals.gate import Gate
from longdecode.evals.records import Key, SpeedRecord
from longdecode.evals.throughput.cells import SpeedCell, SpeedStore
from longdecode.evals.throughput.decode_cells import FULL, HF_LABELS, Labels
from longdecode.evals.throughput.launches import recorded
from longdecode.evals.throughput.models import TimedModel
from longdecode.evals.throughput.spec import DecodeSpec
from longdecode.evals.throughput.speed_job import SpeedJob
from longdecode.evals.throughput.step_block import (
    correction_block,
    fill_cache,
    projections_block,
    rows_block,
    setup_block,
    speculation_block,
    states_of,
    step_block,
)
from longdecode.evals.throughput.timing import Block

PREFILL_CHUNK_TOKENS = 16384
SETUP_ROUNDS = 3
PREFILL_ROUNDS = 2
DRAFT_ROOM = 65
"""Decoded tokens that an evicting drafter's cache has room for: the longest draft and one more."""
Cache = TypeVar("Cache", bound=KVCache)


class DecodeBench:
    """Times the open cells of a job; a cell that cannot run ends as a status and the rest goes on."""

    def __init__(self, job: SpeedJob, store: SpeedStore, model: TimedModel, spec: DecodeSpec, gate: Gate):
        self.job = job
        self.store = store
        self.model = model
        self.spec = spec
        self.labels = Labels(job.run, job.name)
        self.gate = gate

    def run(self) -> None:
        """Time all cells, one context and batch at a time; the stock loop last.

        A graph of the stock loop that cannot be captured must not stand in the way of what follows.
        """
        stock = [cell for cell in self.store.cells if cell.label in HF_LABELS]
        ours = [cell for cell in self.store.cells if cell.label not in HF_LABELS]
        for group in (ours, stock):
            for context, batch in dict.fromkeys((cell.context, cell.batch) for cell in group):
                wanted = self.store.open(cell for cell in group if (cell.context, cell.batch) == (context, batch))
                if wanted:
                    self._place(context, batch, wanted)
                    free_memory(self.job.device)

    def _place(self, context: int, batch: int, cells: Sequence[SpeedCell]) -> None:
        """Time everything at one context and batch."""
        place = _Place(self, context, batch)
        place.watch_memory(cells)
        for cell in cells:
            failure: Exception | None = None
            try:
                self._gate(cell)
                self.store.add(place.measure(cell))
            except Exception as error:
                failure = error
            if failure is not None:
                self._close(cell, failure)
            free_memory(self.job.device)

    def _gate(self, cell: SpeedCell) -> None:
        """Let the labels of the configuration pass whose method conforms.

        Raises:
            GateError: a check of the conformance suite failed.
            UnsupportedCellError: the conformance suite cannot check these parameters.
        """
        if cell.label in self.job.run.methods:
            refusal = self.gate.refusal(cell.label, self.job.name)
            if refusal is not None:
                raise refusal

    def _close(self, cell: SpeedCell, error: Exception) -> None:
        status = self.job.status_or_raise(error)
        if status is not None:
            self.store.add(self.job.closed(cell, self.model.weights, status, str(error)))
        free_memory(self.job.device, error)


class _Place:
    """One context and batch: the dense cache that most methods share, and full attention as the reference of pairs.

    Both are made when a cell first needs them. Where full attention does not fit, the others are timed alone.
    """

    def __init__(self, bench: DecodeBench, context: int, batch: int):
        self.bench = bench
        self.job, self.model, self.spec = bench.job, bench.model, bench.spec
        self.context, self.batch = context, batch
        decoded = min(context - 1, max(self.spec.steps, DRAFT_ROOM))
        self.shape = self.model.decoder.cache_shape(batch, context, decoded)
        self._dense: DenseCache | None = None
        self._full: Block | str | None = None
        self._full_launches: dict[str, Any] = {}
        self._peaks: dict[Key, int] = {}

    @property
    def _over_limit(self) -> bool:
        return self.model.limit is not None and self.context > self.model.limit

    def measure(self, cell: SpeedCell) -> SpeedRecord:
        """Time one cell.

        Raises:
            ContextLimitError: the context is over the checkpoint's limit.
        """
        if self._over_limit:
            raise ContextLimitError(
                f"context {self.context} is over the checkpoint's limit of {self.model.limit} tokens"
            )
        if cell.stage == "prefill":
            return self._prefill(cell)
        reference = self._reference()
        if cell.label in HF_LABELS:
            # transformers is slow to import and only these cells need it.
            from longdecode.evals.throughput.hf_full import measure_stock_loop

            return measure_stock_loop(self.job, self.model, reference, cell, self.spec.rounds)
        if cell.stage == "setup":
            method = self._method(cell)
            method = (method.draft and method.draft.method) or method
            block = setup_block(method, self._cache_for(method), cell.label, self.context - self.spec.steps)
            return self.job.timed(cell, self.model.weights, self.job.time(block, None, SETUP_ROUNDS), None)
        if cell.label == FULL and cell.stage == "step":
            # Full against itself: how far from 1 a ratio comes out when nothing differs.
            if reference is None:
                raise DeviceMemoryError(str(self._full))
            return self._timed(cell, reference, self._full_launches, reference)
        with recorded(self.job.device) as launches:
            block = self._block(cell)
        return self._timed(cell, block, launches.as_record(), reference)

    def watch_memory(self, cells: Sequence[SpeedCell]) -> None:
        """Record the allocator's peak of each label's step while nothing but its cache and the weights stand.

        Labels with a cache of their own come first, before the dense cache is made. A label that cannot be built is
        left to its cell, which meets the same error.
        """
        if self.job.device.type != "cuda" or self._over_limit:
            return
        steps = [cell for cell in cells if cell.stage in ("step", "speculative_step") and cell.label not in HF_LABELS]
        for dense in (False, True):
            for cell in steps:
                try:
                    method = self._method(cell)
                    if (method.make_cache(self.shape) is None) == dense:
                        self._peaks[cell.key] = self._peak(cell)
                except Exception as error:
                    free_memory(self.job.device, error)

    def _peak(self, cell: SpeedCell) -> int:
        free_memory(self.job.device)
        torch.cuda.reset_peak_memory_stats(self.job.device)
        block = self._block(cell)
        block.reset()
        block.run()
        torch.cuda.synchronize(self.job.device)
        return torch.cuda.max_memory_allocated(self.job.device)

    def _timed(self, cell: SpeedCell, block: Block, launch: dict[str, Any], reference: Block | None) -> SpeedRecord:
        """Time a block in pairs with full attention; where that does not fit, alone, and say so."""
        samples = self.job.time(block, reference, self.spec.rounds)
        record = self.job.timed(
            cell, self.model.weights, samples, FULL if reference is not None else None,
            bytes_min=self._bytes(cell), expected_bytes=self._expected_bytes(cell, block),
            peak_bytes=self._peaks.get(cell.key), launch=launch,
            reason=None if reference is not None else f"no ratio over {FULL}: {self._full}",
        )  # fmt: skip
        params, method = dict(cell.params), None if cell.stage == "projections" else self._method(cell)
        if cell.stage == "correction" and method is not None and method.correction is not None:
            params |= {"correction": method.correction.mode, "correction_period": method.correction.period}
        if method is not None and method.draft is not None:
            params |= {"draft_tokens": method.draft.tokens}
        return record.model_copy(update={"params": params})

    def _reference(self) -> Block | None:
        """Return full attention's step, or nothing where its cache does not fit."""
        if self._full is None:
            failure: Exception | None = None
            try:
                with recorded(self.job.device) as launches:
                    self._full = self._block(SpeedCell("decode", FULL, FULL, "step", self.context, self.batch))
                self._full_launches = launches.as_record()
            except Exception as error:
                failure = error
            if failure is not None:
                if status_of(failure) != "oom":
                    raise failure
                self._full = str(failure)
                self._dense = None
                free_memory(self.job.device, failure)
        return self._full if isinstance(self._full, Block) else None

    def _block(self, cell: SpeedCell) -> Block:
        """Make the block of a cell of any stage that is timed in pairs."""
        decoder, label, stage = self.model.decoder, cell.label, cell.stage
        if stage == "projections":
            return projections_block(decoder, self.batch)
        method = self._method(cell)
        cache = self._cache_for(method)
        if stage == "correction":
            return correction_block(decoder, cache, method, label, self.context)
        if stage == "forward_rows":
            return rows_block(decoder, cache, method, label, self.context, cell.params["rows"])
        if method.draft is not None:
            return speculation_block(decoder, cache, method, label, self.context, stage)
        return step_block(decoder, cache, method, label, self.context, self.spec.steps)

    def _method(self, cell: SpeedCell) -> AttentionMethod:
        given = cell.stage == "no_selection"
        return self.bench.labels.build(cell.label, cell.budget_tokens, self.model.config, given=given)

    def _cache_for(self, method: AttentionMethod) -> KVCache:
        """Return a filled cache of the method's own, or the dense one that the place's blocks share.

        Raises:
            DeviceMemoryError: it does not fit.
        """
        cache = method.make_cache(self.shape)
        if cache is None:
            if self._dense is None:
                self._dense = self._filled(DenseCache(self.shape))
            return self._dense
        return self._filled(cache)

    def _filled(self, cache: Cache) -> Cache:
        fill_cache(cache, self.context - self.spec.steps, self.job.run.seed)
        return cache

    def _bytes(self, cell: SpeedCell) -> int | None:
        """Return bytes that a call must read: weights once a pass, and what attention reads for every sequence."""
        weights, element = self.model.read_bytes, self.model.decoder.dtype.itemsize
        whole = self.context * self.model.config.kv_bytes_per_token(element)
        if cell.stage == "projections":
            return weights
        if cell.stage in ("correction", "forward_rows", "verify"):
            return weights + self.batch * whole
        if cell.stage == "keep":
            return None
        method = self._method(cell)
        if (draft := method.draft) is not None:
            drafted = draft.draft_bytes(self.context, element, weights, self.batch)
            return drafted if cell.stage == "draft" else drafted + weights + self.batch * whole
        traffic = method.traffic(self.context, element)
        return weights + self.batch * (traffic.kv_bytes if cell.stage == "no_selection" else traffic.total_bytes)

    def _expected_bytes(self, cell: SpeedCell, block: Block) -> int | None:
        """Return bytes of weights and caches that a user's run of the label holds."""
        if cell.stage in ("projections", "forward_rows", "correction"):
            return None
        caches = {id(state.cache): state.cache.nbytes() for state in states_of(block)}
        return self.model.resident_bytes + sum(caches.values())

    def _prefill(self, cell: SpeedCell) -> SpeedRecord:
        """Time dense prefill of random tokens into the shared cache, LM head of the last row included."""
        generator = torch.Generator().manual_seed(self.job.run.seed)
        vocab = self.model.config.vocab_size
        prompts = [torch.randint(vocab, (self.context,), generator=generator) for _ in range(self.batch)]
        cache = self._cache_for(self._method(cell))

        def prefill() -> None:
            self.model.decoder.prefill(prompts, cache, PREFILL_CHUNK_TOKENS)

        samples = self.job.time(Block(FULL, prefill), None, PREFILL_ROUNDS)
        return self.job.timed(cell, self.model.weights, samples, None)
