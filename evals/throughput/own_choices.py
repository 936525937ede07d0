"""Throughput of checkpoints on real text at equal device memory: what a step reads, each method chooses for itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.config_reader import read_config, resolve_checkpoint
from longdecode.engine.errors import ConfigError, ContextLimitError, DataUnavailableError, DeviceMemoryError
from longdecode.engine.generation import Generator
from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import Stepper, make_stepper
from longdecode.evals import provenance
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.datasets.books import read_books
from longdecode.evals.failures import free_memory
from longdecode.evals.fingerprint import file_hashes, hash_texts, speed_code_hash
from longdecode.evals.gate import Gate
from longdecode.evals.generators.narrative import narrative
from longdecode.evals.records import Provenance, SpeedRecord
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.cells import SpeedCell, SpeedStore
from longdecode.evals.throughput.decode_cells import FULL, Labels
from longdecode.evals.throughput.equal_memory_cells import footprint
from longdecode.evals.throughput.models import TimedModel, load_model, model_hash
from longdecode.evals.throughput.own_choices_spec import JOB, OwnChoicesSpec
from longdecode.evals.throughput.speed_job import REFERENCE, SpeedJob
from longdecode.evals.throughput.step_block import captured, resetter
from longdecode.evals.throughput.timing import Block
from longdecode.evals.tokenizing import load_tokenizer
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.shadowkv.cache import ShadowCache
from longdecode.training.long_context.books import manifest

_STRIDE = 0.6180339887498949
"""Of the room that a book has for windows, from one window's start to the next: spreads any number of them."""


class OwnChoicesJob(SpeedJob):
    """A job whose labels run on models of their own."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        part = self.spec.part(self.name)
        assert isinstance(part, OwnChoicesSpec)
        self.part = part
        self.texts = self._texts()
        self.hashes = {model: model_hash(self.run, model) for model in dict.fromkeys(part.labels.values())}

    @property
    def text_kind(self) -> str:
        """Return what the text is: ``books`` where the configuration names a place for them, else ``generated``."""
        return "books" if self.run.data.get("pg19") else "generated"

    def _texts(self) -> Sequence[str] | DataUnavailableError:
        """Return the books that no training of this project saw, or stories; else why there are none."""
        if books := self.run.data.get("pg19"):
            try:
                return tuple(read_books(books, manifest()["unseen"]).values())
            except DataUnavailableError as error:
                return error
        drawn = (random.Random(f"own choices {number}") for number in range(self.part.sequences))
        return tuple(narrative(rng, 8 * max(self.part.contexts), 0).prompt for rng in drawn)

    def origin(self, cell: SpeedCell) -> Provenance:
        """Collect the provenance of a cell; the model is its label's."""
        where = (cell.subject, cell.label)
        if where not in self._origins:
            model = self.part.labels[cell.label]
            files = self.run.methods[cell.label].files_of(model)
            self._origins[where] = provenance.collect(
                settings={},
                code=speed_code_hash(JOB, (REFERENCE, cell.subject)),
                model=self.hashes[model],
                data=hash_texts([*file_hashes(files), *(() if isinstance(self.texts, Exception) else self.texts)]),
                device=self.device,
                dtype=self.dtype,
            )
        return self.of_cell(self._origins[where], cell)

    def _record(self, cell: SpeedCell, weights: Any, **values: Any) -> SpeedRecord:
        record = super()._record(cell, weights, **values)
        return record.model_copy(update={"model": self.part.labels[cell.label]})


def own_choices_cells(run: RunConfig, spec: OwnChoicesSpec, dtype: torch.dtype) -> list[SpeedCell]:
    """Return every cell, context by context: full first, then each place with its labels."""
    configs = _configs(run, spec)
    cells = []
    for context in spec.contexts:
        cells.append(_cell(run, spec, configs, dtype, FULL, context, FULL_BUDGET, "whole"))
        for place in (place for place in spec.places if place.context == context):
            for label in spec.timed(place):
                budget = Budget(place.budget) if run.methods[label].takes_budget else FULL_BUDGET
                cells.append(_cell(run, spec, configs, dtype, label, context, budget, place.prompts))
    return list({cell.key: cell for cell in cells}.values())


def _configs(run: RunConfig, spec: OwnChoicesSpec) -> Mapping[str, ModelConfig]:
    """Return the shape of every model.

    Raises:
        ConfigError: they differ in what a step's time depends on.
    """
    paths = {model: run.models[model] for model in dict.fromkeys(spec.labels.values())}
    found = {model: read_config(resolve_checkpoint(at.path, at.revision)) for model, at in paths.items()}
    shapes = {
        (c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size) for c in found.values()
    }
    if len(shapes) > 1:
        raise ConfigError(f"{run.source}: throughput.own_choices: {', '.join(found)} are models of several shapes")
    return found


def _cell(
    run: RunConfig, spec: OwnChoicesSpec, configs: Mapping[str, ModelConfig], dtype: torch.dtype, label: str,
    context: int, budget: Budget, prompts: str,
) -> SpeedCell:  # fmt: skip
    model = spec.labels[label]
    config, labels = configs[model], Labels(run, model)
    memory = spec.sequences * context * config.kv_bytes_per_token(dtype.itemsize)
    one = footprint(labels.build(label, budget.tokens(context), config), config, context, spec.forced, dtype)
    most = [spec.max_batch, memory // one.device, (spec.host_gib << 30) // max(1, one.host)]
    params = {
        **labels.params(label), "memory_bytes": memory, "device_bytes_per_sequence": one.device,
        "host_bytes_per_sequence": one.host, "host_gib": spec.host_gib, "prompts": prompts,
    }  # fmt: skip
    batch = spec.sequences if label == FULL else max(1, min(most))
    return SpeedCell("own_choices", labels.method_name(label), label, "step", context, batch, budget, params)


@dataclass(frozen=True, slots=True)
class _Decoding:
    """A label in the middle of a text: its stepper, the block that advances it, and its prompt's time."""

    stepper: Stepper
    block: Block
    prefill_ms: float


class OwnChoicesBench:
    """Times the open cells, context by context. A call is one token of one sequence, so that ratios are of throughput.

    A label reads its prompts by its own rule into its own cache and decodes the words that follow in the book, its step
    a CUDA graph. It goes on from block to block and never back, so that what is resident is what its choices left
    there. Full attention, at a batch of its own, goes back before each of its blocks.
    """

    def __init__(self, job: OwnChoicesJob, store: SpeedStore, gate: Gate):
        self.job, self.store, self.gate, self.spec = job, store, gate, job.part
        self.ids: list[list[int]] | None = None
        self.models: dict[str, TimedModel] = {}
        self.full: tuple[int, _Decoding, Tensor] | None = None

    def run(self) -> None:
        """Reserve host memory once, then time every open cell; one that cannot run ends as a status."""
        todo = self.store.open(self.store.cells)
        need = max((cell.batch * cell.params["host_bytes_per_sequence"] for cell in todo), default=0)
        try:
            self._reserve(need)
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

    def _reserve(self, need: int) -> None:
        """Pin as much host memory as the largest cell needs, in a region that all cells then use."""
        if not need or self.job.device.type != "cuda":
            return
        rounded = 1 << (need - 1).bit_length()
        try:
            HostBuffer(rounded if rounded <= self.spec.host_gib << 30 else need, self.job.device)
        except Exception as error:
            # The cells that need it will say why.
            free_memory(self.job.device, error)

    def _refuse(self, cell: SpeedCell) -> None:
        """Raise where a label does not conform, or not one sequence fits the memory."""
        if refusal := self.gate.refusal(cell.label, self.spec.labels[cell.label]):
            raise refusal
        one, memory = cell.params["device_bytes_per_sequence"], cell.params["memory_bytes"]
        if one > memory:
            raise DeviceMemoryError(f"one sequence of {cell.label} needs {one:,} bytes; {memory:,} are for all")

    def _close(self, cell: SpeedCell, error: Exception) -> None:
        status = self.job.status_or_raise(error)
        if status is not None:
            self.store.add(self.job.closed(cell, "checkpoint", status, str(error)))
        free_memory(self.job.device, error)

    def _measure(self, cell: SpeedCell) -> SpeedRecord:
        full, full_losses = self._reference(cell.context)
        model = self._model(cell.label)
        if cell.label == FULL:
            samples = self.job.time(full.block, full.block, self.spec.rounds)
            return self._record(cell, model, full, samples, {"loss": float(full_losses.mean())})
        mine = self._decoding(cell, model)
        if self.job.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.job.device)
        before, done = _moved(mine.stepper.state.cache), int(mine.stepper.sequences.counts[0])
        samples = self.job.time(mine.block, full.block, self.spec.rounds)
        tokens = cell.batch * (int(mine.stepper.sequences.counts[0]) - done)
        fetched, ahead = (
            (now - then) / tokens for now, then in zip(_moved(mine.stepper.state.cache), before, strict=True)
        )
        found: dict[str, Any] = {"fetched_bytes": fetched, "prefetched_bytes": ahead}
        losses = _losses(mine.stepper, self.spec)
        found |= {"loss": float(losses.mean()), "full_loss": float(full_losses[: len(losses)].mean())}
        found["miss_rate"] = _miss_rate(mine.stepper, fetched + ahead)
        return self._record(cell, model, mine, samples, found, beside=full.stepper.state.cache.nbytes())

    def _record(
        self, cell: SpeedCell, model: TimedModel, mine: _Decoding, samples: Any, found: dict[str, Any], beside: int = 0
    ) -> SpeedRecord:
        traffic = mine.stepper.method.traffic(cell.context, model.decoder.dtype.itemsize)
        peak = None
        if self.job.device.type == "cuda" and cell.label != FULL:
            peak = torch.cuda.max_memory_allocated(self.job.device) - beside
        record = self.job.timed(
            cell, "checkpoint", samples, FULL, bytes_min=model.read_bytes // cell.batch + traffic.total_bytes,
            expected_bytes=model.resident_bytes + mine.stepper.state.cache.nbytes(), peak_bytes=peak,
        )  # fmt: skip
        params = {**cell.params, **found, "text": self.job.text_kind, "prefill_ms": mine.prefill_ms}
        return record.model_copy(update={"params": params})

    def _reference(self, context: int) -> tuple[_Decoding, Tensor]:
        """Return full attention in the middle of its texts, and its losses on what follows."""
        if self.full is None or self.full[0] != context:
            self.full = None
            free_memory(self.job.device)
            cell = next(c for c in self.store.cells if c.label == FULL and c.context == context)
            found = self._decoding(cell, self._model(FULL))
            for _ in range((self.spec.scored - 1) // self.spec.steps):
                found.block.run()
            self.full = context, found, _losses(found.stepper, self.spec)
        return self.full[1], self.full[2]

    def _decoding(self, cell: SpeedCell, model: TimedModel) -> _Decoding:
        """Read the prompts of a cell and stand ready to decode; full attention goes back to here before each block.

        Raises:
            ContextLimitError: the context is over the checkpoint's limit.
        """
        if model.limit is not None and cell.context > model.limit:
            raise ContextLimitError(f"context {cell.context} is over the checkpoint's limit of {model.limit} tokens")
        method = Labels(self.job.run, model.name).build(cell.label, cell.budget_tokens, model.config)
        if cell.params["prompts"] == "whole":
            vars(method)["attend_prompt"] = _read_whole
        prompt = Generator(model.decoder).prefill_for(self._requests(cell.context, cell.batch), method)
        with torch.no_grad():
            stepper = make_stepper(model.decoder, Sampling(), prompt, method, keep_prompt=False)
        reset = resetter(stepper) if cell.label == FULL else _stay
        advance = captured(stepper.step, self.job.device, reset)

        def run() -> None:
            for _ in range(self.spec.steps):
                advance()

        block = Block(cell.label, run, self.spec.steps * cell.batch, reset, keep=(stepper, advance))
        return _Decoding(stepper, block, prompt.prefill_ms)

    def _model(self, label: str) -> TimedModel:
        """Return a label's model; of those beside full attention's, one stays loaded."""
        name = self.spec.labels[label]
        if name not in self.models:
            self.models = {kept: model for kept, model in self.models.items() if kept == self.spec.model}
            free_memory(self.job.device)
            self.models[name] = load_model(self.job.run, name, self.job.device, self.job.dtype, max(self.spec.contexts))
        return self.models[name]

    def _requests(self, context: int, batch: int) -> list[Request]:
        """Return windows of ``context`` tokens in the books that no training saw, the last of them forced.

        Row by row another book, and another window of it each time around: the first rows are those of every batch.

        Raises:
            DataUnavailableError: no book is long enough.
        """
        if self.ids is None:
            self.ids = self._tokenised()
        long = [ids for ids in self.ids if len(ids) >= context]
        if not long:
            raise DataUnavailableError(f"no text of the {len(self.ids)} has {context:,} tokens")
        cut, found = context - self.spec.forced, []
        for row in range(batch):
            ids, turn = long[row % len(long)], row // len(long)
            start = int((len(ids) - context) * (turn * _STRIDE % 1))
            window = tuple(ids[start : start + context])
            found.append(Request(window[:cut], 0, window[cut:]))
        return found

    def _tokenised(self) -> list[list[int]]:
        """Return the ids of the texts, by the tokenizer of full attention's model."""
        if isinstance(self.job.texts, Exception):
            raise self.job.texts
        model = self.job.run.models[self.spec.model]
        tokenizer = load_tokenizer(resolve_checkpoint(model.path, model.revision))
        return [list(tokenizer.encode(text)) for text in self.job.texts]


def _read_whole(layer: int, q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """See ``AttentionMethod.attend_prompt``: dense and causal."""
    return prefill_attention(q, keys, values, start)


def _stay() -> None:
    """Go on from where the block before ended."""


def _moved(cache: KVCache) -> tuple[int, int]:
    """Return the bytes that came from host memory so far, fetched and prefetched."""
    if isinstance(cache, ShadowCache):
        return cache.fetched_bytes, 0
    if isinstance(cache, OffloadedCache):
        return int(cache.fetched.sum()) * _block_bytes(cache), int(cache.prefetched.sum()) * _block_bytes(cache)
    return 0, 0


def _block_bytes(cache: OffloadedCache) -> int:
    return 2 * cache.block_size * cache.config.head_dim * cache.shape.dtype.itemsize


def _miss_rate(stepper: Stepper, moved: float) -> float | None:
    """Return the share of what a step lists that it fetches: blocks, or ShadowKV's chosen chunks, of which values."""
    cache = stepper.state.cache
    if isinstance(cache, ShadowCache):
        config, plan = cache.config, cache.plan
        chunk = plan.chunk * config.head_dim * cache.shape.dtype.itemsize
        return moved / (chunk * plan.sparse * config.num_layers * config.num_kv_heads)
    if isinstance(cache, OffloadedCache):
        lists = len(cache.at) * cache.config.num_kv_heads
        assert isinstance(stepper.method, Offloadable)
        return moved / (_block_bytes(cache) * stepper.method.listed_blocks * lists)
    return None


def _losses(stepper: Stepper, spec: OwnChoicesSpec) -> Tensor:
    """Return nats a token over the forced tokens that every label decodes, of full attention's rows or fewer."""
    rows = min(spec.sequences, len(stepper.sequences.counts))
    return -stepper.sequences.logprobs[:rows, : spec.scored].double().mean(dim=1).cpu()
