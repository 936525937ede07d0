"""Throughput at equal device memory: each label decodes as many sequences as one memory for keys and values holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import DeviceMemoryError
from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.evals.failures import free_memory
from longdecode.evals.gate import Gate
from longdecode.evals.records import SpeedRecord, Stage
from longdecode.evals.throughput.cells import SpeedCell, SpeedStore
from longdecode.evals.throughput.decode_cells import FULL, Labels
from longdecode.evals.throughput.driven import Driven, decode_block, transfer_blocks
from longdecode.evals.throughput.equal_memory_cells import decoded_tokens
from longdecode.evals.throughput.equal_memory_spec import EqualMemorySpec
from longdecode.evals.throughput.models import TimedModel
from longdecode.evals.throughput.replayed import replay
from longdecode.evals.throughput.speed_job import SpeedJob
from longdecode.evals.throughput.step_block import fill_cache, states_of
from longdecode.evals.throughput.timing import Block
from longdecode.evals.throughput.wandering import Turnover, wander
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.shadowkv.cache import ShadowCache
from longdecode.methods.shadowkv.method import ShadowKV

COPY = "pinned_copy"
"""Partner of a transfer in its pairs: one copy by the driver, of as many bytes."""
_FILL_BYTES = 1 << 26


class EqualMemoryBench:
    """Times the open cells, context by context. A call is one token of one sequence, so that ratios are of throughput.

    Every label runs on one decoder, its step a CUDA graph, in pairs with full attention at its own batch.
    """

    def __init__(self, job: SpeedJob, store: SpeedStore, model: TimedModel, spec: EqualMemorySpec, gate: Gate):
        self.job, self.store, self.model, self.spec, self.gate = job, store, model, spec, gate
        self.labels = Labels(job.run, spec.model)
        self.full: tuple[int, Block] | None = None

    def run(self) -> None:
        """Reserve host memory once, then time every open cell; one that cannot run ends as a status."""
        todo = self.store.open(self.store.cells)
        try:
            self._reserve(todo)
            for cell in todo:
                failure: Exception | None = None
                try:
                    self._refuse(cell)
                    self.store.add(self._measure(cell))
                except Exception as error:
                    failure = error
                if failure is not None:
                    self._close(cell, failure)
                free_memory(self.job.device)
        finally:
            self.full = None

    def _reserve(self, cells: Sequence[SpeedCell]) -> None:
        """Pin the most host memory that a cell needs and fill it, so that all use one region.

        A power of two where the configuration allows it: that much torch's own allocator pins in one piece.
        """
        need = max((cell.batch * cell.params["host_bytes_per_sequence"] for cell in cells), default=0)
        if not need or self.job.device.type != "cuda":
            return
        rounded = 1 << (need - 1).bit_length()
        need = rounded if rounded <= self.spec.host_gib << 30 else need
        try:
            region = HostBuffer(need, self.job.device).bytes
        except Exception as error:
            # The cells that need it will say why.
            free_memory(self.job.device, error)
            return
        values = torch.randn(_FILL_BYTES // self.job.dtype.itemsize, device=self.job.device).to(self.job.dtype)
        for part in region.split(_FILL_BYTES):
            part.copy_(values.view(torch.uint8)[: part.numel()], non_blocking=True)
        torch.cuda.synchronize(self.job.device)

    def _refuse(self, cell: SpeedCell) -> None:
        """Raise where a label does not conform or not one sequence fits the memory."""
        if cell.label in self.job.run.methods and (refusal := self.gate.refusal(cell.label, self.spec.model)):
            raise refusal
        one, memory = cell.params["device_bytes_per_sequence"], cell.params["memory_bytes"]
        if one > memory:
            raise DeviceMemoryError(f"one sequence of {cell.label} needs {one:,} bytes; {memory:,} are for all")

    def _close(self, cell: SpeedCell, error: Exception) -> None:
        status = self.job.status_or_raise(error)
        if status is not None:
            self.store.add(self.job.closed(cell, self.model.weights, status, str(error)))
        free_memory(self.job.device, error)

    def _measure(self, cell: SpeedCell) -> SpeedRecord:
        if cell.stage == "transfer":
            return self._transfer(cell)
        reference = self._reference(cell.context)
        if self.job.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.job.device)
        if cell.label == FULL:
            return self._timed(cell, reference, reference, {})
        method = self._method(cell)
        cache = self._cache(method, cell)
        block = self._block(method, cache, cell, cell.stage)
        found: dict[str, Any] = {"fetched_bytes": 0, "prefetched_bytes": 0}
        if isinstance(cache, OffloadedCache | ShadowCache):
            found = _fetched(block, cache, cell.batch * self.spec.steps)
        return self._timed(cell, block, reference, found)

    def _block(self, method: AttentionMethod, cache: KVCache, cell: SpeedCell, stage: Stage) -> Block:
        driven = self._drive(method, cell)
        return decode_block(self.model.decoder, cache, method, cell.label, cell.context, self.spec.steps, driven, stage)

    def _timed(self, cell: SpeedCell, block: Block, reference: Block, found: dict[str, Any]) -> SpeedRecord:
        samples = self.job.time(block, reference, self.spec.rounds)
        element = self.model.decoder.dtype.itemsize
        traffic = self._method(cell).traffic(cell.context, element)
        record = self.job.timed(
            cell, self.model.weights, samples, FULL,
            bytes_min=self.model.read_bytes // cell.batch + traffic.total_bytes,
            expected_bytes=self.model.resident_bytes + _cache_bytes(block),
            peak_bytes=self._peak(0 if block is reference else _cache_bytes(reference)),
        )  # fmt: skip
        return record.model_copy(update={"params": dict(cell.params) | found})

    def _peak(self, beside: int) -> int | None:
        """Return the most that the allocator held for a cell, without what Full's cache took ``beside`` it."""
        return torch.cuda.max_memory_allocated(self.job.device) - beside if self.job.device.type == "cuda" else None

    def _transfer(self, cell: SpeedCell) -> SpeedRecord:
        """Time the fetch of as many blocks as a step fetches, alone, in pairs with one copy of as many bytes."""
        method = self._method(cell)
        cache = self._cache(method, cell)
        if not isinstance(cache, OffloadedCache):
            raise DeviceMemoryError(f"{cell.label} fetches nothing: its cache is on the device")
        found = _fetched(self._block(method, cache, cell, "step"), cache, self.spec.steps)
        missing = round(sum(found.values()) / len(cache.at) / _block_bytes(cache))
        free_memory(self.job.device)
        fetch, copy, moved = transfer_blocks(cache, max(1, missing), self.job.run.seed)
        samples = self.job.time(fetch, copy, self.spec.rounds)
        return self.job.timed(cell, self.model.weights, samples, COPY, bytes_min=moved)

    def _reference(self, context: int) -> Block:
        """Return full attention's block at a context; the one of the context before is dropped first."""
        if self.full is None or self.full[0] != context:
            self.full = None
            free_memory(self.job.device)
            method = self.labels.build(FULL, None, self.model.config)
            cache = DenseCache(self.model.decoder.cache_shape(self.spec.sequences, context))
            fill_cache(cache, context - self.spec.steps, self.job.run.seed)
            block = decode_block(self.model.decoder, cache, method, FULL, context, self.spec.steps, None, "step")
            self.full = context, block
        return self.full[1]

    def _method(self, cell: SpeedCell) -> AttentionMethod:
        return self.labels.build(cell.label, cell.budget_tokens, self.model.config)

    def _cache(self, method: AttentionMethod, cell: SpeedCell) -> KVCache:
        shape = self.model.decoder.cache_shape(cell.batch, cell.context, decoded_tokens(self.spec))
        cache = method.make_cache(shape) or DenseCache(shape)
        fill_cache(cache, cell.context - self.spec.steps, self.job.run.seed)
        return cache

    def _drive(self, method: AttentionMethod, cell: SpeedCell) -> Driven | None:
        """Replace a method's selections by drawn ones of the cell's hit rate; ``None`` where it selects for itself."""
        config, steps, device, seed = self.model.config, self.spec.steps, self.job.device, self.job.run.seed
        trace = self.spec.trace(cell.label) if isinstance(cell.params["hit_rate"], str) else None
        rates = cell.params["layer_hits"] or self.spec.rates(cell.label, config.num_layers)
        if isinstance(method, ShadowKV) and rates is not None:
            return self._drive_chunks(method, cell, rates)
        if (rates is None and trace is None) or not isinstance(method, Offloadable):
            return None
        lists, first = (cell.batch, config.num_kv_heads), cell.context - steps - 1
        recall = self.spec.recall if method.looks_ahead else 1.0
        listed, size = method.listed_blocks, method.block_tokens
        if trace is not None and cell.stage != "resident":
            newest = torch.arange(first, first + steps + 1) // size
            return Driven(method, replay(trace, newest, config.num_layers, lists, listed, device, recall, seed))
        rates = (1.0,) * config.num_layers if cell.stage == "resident" or rates is None else rates
        turnover = Turnover(listed, max(1, listed // 4), size)
        return Driven(method, wander(turnover, first, steps + 1, rates, lists, device, seed, recall))

    def _drive_chunks(self, method: ShadowKV, cell: SpeedCell, rates: Sequence[float]) -> Driven:
        """Draw which of the prompt's scored chunks each step chooses."""
        plan, steps = method.plan, self.spec.steps
        last = method.scored_chunks(cell.context - steps - 1) * plan.chunk - 1
        lists, rates = (
            (cell.batch, self.model.config.num_kv_heads),
            [1.0] * len(rates) if cell.stage == "resident" else rates,
        )
        turnover = Turnover(plan.sparse, 0, plan.chunk)
        return Driven(method, wander(turnover, last, steps + 1, rates, lists, self.job.device, self.job.run.seed))


def _cache_bytes(block: Block) -> int:
    return sum(state.cache.nbytes() for state in states_of(block))


def _fetched(block: Block, cache: OffloadedCache | ShadowCache, tokens: int) -> dict[str, Any]:
    """Run a block once more and count what came from host memory for one token of one sequence."""
    block.reset()
    before = _moved_bytes(cache)
    block.run()
    moved = [(now - then) / tokens for now, then in zip(_moved_bytes(cache), before, strict=True)]
    return {"fetched_bytes": moved[0], "prefetched_bytes": moved[1]}


def _moved_bytes(cache: OffloadedCache | ShadowCache) -> tuple[int, int]:
    """Return the bytes that came from host memory so far, fetched and prefetched."""
    if isinstance(cache, ShadowCache):
        return cache.fetched_bytes, 0
    return int(cache.fetched.sum()) * _block_bytes(cache), int(cache.prefetched.sum()) * _block_bytes(cache)


def _block_bytes(cache: OffloadedCache) -> int:
    """Return the bytes of one block of one KV head, keys and values."""
    return 2 * cache.block_size * cache.config.head_dim * cache.shape.dtype.itemsize
