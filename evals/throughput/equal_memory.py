"""Throughput at equal device memory: each variant decodes as many sequences as one memory for keys and values holds.

A call is one token of one sequence, so that ratios are of throughput. What a step reads is drawn for a wanted hit rate,
or, on the real text of ``own_choices``, each method chooses for itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longdecode.engine import errors
from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.generation import Generator
from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache
from longdecode.engine.request import Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import Stepper, make_stepper
from longdecode.evals.datasets.books import UNSEEN, read_books
from longdecode.evals.gate import attempt, free_memory
from longdecode.evals.generators.narrative import narrative
from longdecode.evals.records import BenchName
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.forced_selection import ForcedSelection, draw_selections
from longdecode.evals.throughput.harness import Bench, SpeedCell
from longdecode.evals.throughput.spec import FULL, MAX_BATCH, OWN_CHOICES, Grid
from longdecode.evals.throughput.steps import fill_cache, new_stepper, stepper_case
from longdecode.evals.throughput.timing import Case, captured, nothing, repeated
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.shadowkv.cache import ShadowCache

_FILL_BYTES = 1 << 26
_STRIDE = 0.6180339887498949
"""Of the room that a book has for windows, from one window's start to the next: spreads any number of them."""


class EqualMemoryBench(Bench):
    """Times variants at random weights or a checkpoint's, selections forced to a wanted hit rate where a grid says so.

    Full attention has a batch of its own; it is the reference of every pair.
    """

    bench: BenchName = "offload"

    def cells(self) -> list[SpeedCell]:
        """Return every cell: at each context full first, then the variants at their budgets and hit rates."""
        found: list[SpeedCell] = []
        for grid in self.grids:
            for context in grid.contexts:
                found += map(self._sized, self.steps_of(replace(grid, prompts="whole"), FULL, context))
                for variant in grid.variants:
                    for cell in map(self._sized, self.steps_of(grid, variant, context) if variant != FULL else ()):
                        rates = grid.hits.get(variant, ())
                        found += [replace(cell, params={**cell.params, "hit_rate": rate}) for rate in rates] or [cell]
        return found

    def _sized(self, cell: SpeedCell) -> SpeedCell:
        """Return a cell with as many sequences as the memory holds, and the bytes that say so."""
        grid, config = cell.grid, self.model_of(cell).model_config
        memory = grid.sequences * cell.context * config.kv_bytes_per_token(self.dtype.itemsize)
        shape = CacheShape(config, 1, cell.context, torch.device("meta"), self.dtype, grid.cached_tokens)
        try:
            device, host = self.method(cell).footprint(shape)
        except errors.LongDecodeError:
            device, host = 0, 0  # timing the cell will meet the same error and record it
        most = min(MAX_BATCH, memory // max(1, device), (grid.host_gib << 30) // max(1, host))
        setting = {"prompts": grid.prompts} if grid.bench == OWN_CHOICES else {"hit_rate": None}
        params = {
            **cell.params, **setting, "memory_bytes": memory, "device_bytes_per_sequence": device,
            "host_bytes_per_sequence": host, "host_gib": grid.host_gib,
        }  # fmt: skip
        return replace(cell, batch=grid.sequences if cell.variant == FULL else max(1, most), params=params)

    def place(self, cell: SpeedCell) -> Any:
        """See ``Bench.place``: a context, at which all share full attention."""
        return cell.grid.model, cell.context, cell.grid.sequences

    def start(self, cells: Sequence[SpeedCell]) -> None:
        """Pin the most host memory that a cell needs and fill it, so that all use one region.

        A power of two where the configuration allows it: that much torch's own allocator pins in one piece.
        """
        need = max((cell.batch * cell.params["host_bytes_per_sequence"] for cell in cells), default=0)
        if not need or self.device.type != "cuda":
            return
        rounded, most = 1 << (need - 1).bit_length(), cells[0].grid.host_gib << 30

        def pin() -> None:
            region = HostBuffer(rounded if rounded <= most else need, self.device).bytes
            values = torch.randn(_FILL_BYTES // self.dtype.itemsize, device=self.device).to(self.dtype)
            for part in region.split(_FILL_BYTES):
                part.copy_(values.view(torch.uint8)[: part.numel()], non_blocking=True)
            torch.cuda.synchronize(self.device)

        attempt(pin, self.device)  # the cells that need the memory will say why it failed
        free_memory(self.device)

    def reference(self, cell: SpeedCell) -> Case:
        """Return full attention's steps at its own batch."""
        return self.full(cell, batch=cell.grid.sequences)

    def case(self, cell: SpeedCell) -> Case:
        """Prepare a variant's steps.

        Raises:
            DeviceMemoryError: not one sequence fits the memory.
        """
        one, memory = cell.params["device_bytes_per_sequence"], cell.params["memory_bytes"]
        if one > memory:
            raise errors.DeviceMemoryError(f"one {cell.variant} sequence needs {one:,} bytes; {memory:,} are for all")
        case = self.reference(cell) if cell.variant == FULL else self.prepare(cell)
        weights = self.decoder(cell).weights.nbytes() // cell.batch
        read = weights + self.method(cell).traffic(cell.context, self.dtype.itemsize).total_bytes
        return replace(case, bytes_min=read)

    def prepare(self, cell: SpeedCell) -> Case:
        """Make a case of decode steps that ends with a query over the whole context.

        One step more runs before, untimed, so that the first timed one finds the blocks of the step before it.
        """
        decoder, method, steps = self.decoder(cell), self.method(cell), cell.grid.steps
        shape = decoder.cache_shape(cell.batch, cell.context, cell.grid.cached_tokens)
        cache = fill_cache(method.make_cache(shape) or DenseCache(shape), cell.context - steps, self.run.seed)
        rewind = self._force(method, cell)
        stepper = new_stepper(decoder, cache, method, cell.context - steps - 1)
        plain = stepper_case(stepper, stepper.step, cell.variant, steps)
        _, advance, _ = plain.keep

        def reset() -> None:
            plain.reset()
            rewind()
            advance()

        def found() -> Mapping[str, Any]:
            """Run the block once more and count what came from host memory for one token of one sequence."""
            reset()
            before = moved_bytes(cache)
            plain.run()
            return fetched(cache, before, cell.batch * steps)

        return replace(plain, calls=steps * cell.batch, reset=reset, found=found)

    def _force(self, method: AttentionMethod, cell: SpeedCell) -> Callable[[], None]:
        """Replace a method's selections by drawn ones where a cell has a hit rate; return what goes back to the first.

        Raises:
            UnsupportedCellError: its selections cannot be forced.
        """
        rate, steps = cell.params.get("hit_rate"), cell.grid.steps + 1
        if rate is None:
            return nothing
        if not isinstance(method, Offloadable) or method.looks_ahead:
            raise errors.UnsupportedCellError(f"{cell.variant} reads no listed blocks, or guesses them a layer early")
        lists = (steps, method.config.num_layers, cell.batch, method.config.num_kv_heads, method.listed_blocks)
        drawn = draw_selections(lists, method.block_tokens, cell.context - steps, rate, self.device, self.run.seed)
        return ForcedSelection(method, drawn).rewind


class OwnChoicesBench(EqualMemoryBench):
    """Times variants on models of their own, of one shape.

    A variant reads its prompts by its own rule into its own cache and decodes the words that follow in the book, its
    step a CUDA graph. It goes on from block to block and never back, so that what is resident is what its choices left
    there. Full attention, at a batch of its own, goes back before each of its blocks.
    """

    bench = "own_choices"

    def __init__(self, run: RunConfig, name: str, device: torch.device):
        super().__init__(run, name, device)
        configs = [model.model_config for model in self.models.values()]
        shapes = {(c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size) for c in configs}
        if len(shapes) > 1:
            raise errors.ConfigError(f"{run.source}: own_choices: {', '.join(self.models)} are of several shapes")
        with suppress(errors.DataUnavailableError):  # the cells that need them will say so
            self.texts = self._texts()
        self.ids: list[list[int]] = []

    def decoder(self, cell: SpeedCell) -> Decoder:
        """See ``Bench.decoder``; of those beside full attention's, one stays loaded."""
        for name, model in self.models.items():
            if name not in (cell.grid.model, self.model_name(cell)) and vars(model).pop("decoder", None):
                free_memory(self.device)
        return super().decoder(cell)

    def prepare(self, cell: SpeedCell) -> Case:
        """Read a cell's prompts and stand ready to decode."""
        grid, method, decoder = cell.grid, self.method(cell), self.decoder(cell)
        if grid.prompts == "whole" or cell.variant == FULL:
            vars(method)["attend_prompt"] = lambda layer, q, k, v, start: prefill_attention(q, k, v, start)
        prompt = Generator(decoder).prefill_for(self.requests(grid, cell.context, cell.batch), method)
        with torch.no_grad():
            stepper = make_stepper(decoder, Sampling(), prompt, method, keep_prompt=False)
        text = "books" if self.run.data.get("pg19") else "generated"
        known: dict[str, Any] = {"text": text, "prefill_ms": prompt.prefill_ms}
        if cell.variant == FULL:
            case = stepper_case(stepper, stepper.step, FULL, grid.steps)
            for _ in range((grid.scored_tokens - 1) // grid.steps):
                case.run()
            losses = self._losses(stepper, grid)
            known["loss"] = float(losses.mean())
            return replace(case, calls=grid.steps * cell.batch, params=known, keep=(*case.keep, losses))
        advance = captured(stepper.step, self.device)
        cache, full_losses = stepper.state.cache, self.reference(cell).keep[-1]
        before, done = moved_bytes(cache), int(stepper.sequences.counts[0])

        def found() -> Mapping[str, Any]:
            moved = fetched(cache, before, cell.batch * (int(stepper.sequences.counts[0]) - done))
            losses = self._losses(stepper, grid)
            return {
                **moved, "loss": float(losses.mean()), "full_loss": float(full_losses[: len(losses)].mean()),
                "miss_rate": sum(moved.values()) / listed if (listed := _listed_bytes(stepper)) else None,
            }  # fmt: skip

        return Case(
            cell.variant, repeated(advance, grid.steps), grid.steps * cell.batch, keep=(stepper, advance),
            caches=(cache,), params=known, found=found,
        )  # fmt: skip

    def requests(self, grid: Grid, context: int, batch: int) -> list[Request]:
        """Return windows of ``context`` tokens in the texts, the last of them forced.

        Row by row another text, and another window of it each time around: the first rows are those of every batch.

        Raises:
            DataUnavailableError: there are no texts, or none is long enough.
        """
        if not self.ids:
            encode = self.models[grid.model].tokenizer.encode
            self.ids = [list(encode(text)) for text in self.texts or self._texts()]
        long = [ids for ids in self.ids if len(ids) >= context]
        if not long:
            raise errors.DataUnavailableError(f"no text of the {len(self.ids)} has {context:,} tokens")
        cut, found = context - grid.forced_tokens, []
        for row in range(batch):
            ids, turn = long[row % len(long)], row // len(long)
            start = int((len(ids) - context) * (turn * _STRIDE % 1))
            window = tuple(ids[start : start + context])
            found.append(Request(window[:cut], 0, window[cut:]))
        return found

    def _texts(self) -> Sequence[str]:
        """Return the books that no training of this project saw, or stories where no place for books is configured."""
        if books := self.run.data.get("pg19"):
            return tuple(read_books(books, UNSEEN).values())
        longest = max(context for grid in self.grids for context in grid.contexts)
        count = max(grid.sequences for grid in self.grids)
        drawn = (random.Random(f"own choices {number}") for number in range(count))
        return tuple(narrative(rng, 8 * longest) for rng in drawn)

    def _losses(self, stepper: Stepper, grid: Grid) -> Tensor:
        """Return nats a token over the tokens that every variant decodes, of full attention's rows or fewer."""
        rows = min(grid.sequences, len(stepper.sequences.counts))
        return -stepper.sequences.logprobs[:rows, : grid.scored_tokens].double().mean(dim=1).cpu()


def moved_bytes(cache: KVCache) -> tuple[int, int]:
    """Return the bytes that came from host memory so far, fetched and prefetched."""
    if isinstance(cache, ShadowCache):
        return cache.fetched_bytes, 0
    if isinstance(cache, OffloadedCache):
        return int(cache.fetched.sum()) * block_bytes(cache), int(cache.prefetched.sum()) * block_bytes(cache)
    return 0, 0


def block_bytes(cache: OffloadedCache) -> int:
    """Return the bytes of one block of one KV head, keys and values."""
    return 2 * cache.block_size * cache.config.head_dim * cache.shape.dtype.itemsize


def fetched(cache: KVCache, before: tuple[int, int], tokens: int) -> dict[str, float]:
    """Return the bytes that came from host memory since, for one token of one sequence."""
    mine, ahead = ((now - then) / tokens for now, then in zip(moved_bytes(cache), before, strict=True))
    return {"fetched_bytes": mine, "prefetched_bytes": ahead}


def _listed_bytes(stepper: Stepper) -> int:
    """Return the bytes that a step lists of what lies in host memory: blocks, or the values of ShadowKV's chunks."""
    cache, method = stepper.state.cache, stepper.method
    if isinstance(cache, ShadowCache):
        chunk = cache.plan.chunk * cache.config.head_dim * cache.shape.dtype.itemsize
        return chunk * cache.plan.sparse * cache.config.num_layers * cache.config.num_kv_heads
    if isinstance(cache, OffloadedCache) and isinstance(method, Offloadable):
        return block_bytes(cache) * method.listed_blocks * len(cache.at) * cache.config.num_kv_heads
    return 0
