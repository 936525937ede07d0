"""Throughput at equal device memory: each variant decodes as many sequences as one memory for keys and values holds.

A call is one token of one sequence, so that ratios are of throughput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import DeviceMemoryError, LongDecodeError, UnsupportedCellError
from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.gate import free_memory
from longdecode.evals.records import Bench as BenchName
from longdecode.evals.throughput.forced_selection import ForcedSelection, draw_selections
from longdecode.evals.throughput.harness import Bench, SpeedCell
from longdecode.evals.throughput.models import config_of
from longdecode.evals.throughput.spec import FULL, MAX_BATCH, Grid
from longdecode.evals.throughput.steps import fill_cache, new_stepper, stepper_case
from longdecode.evals.throughput.timing import Case
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.shadowkv.cache import ShadowCache

_FILL_BYTES = 1 << 26


class EqualMemoryBench(Bench):
    """Times variants at random weights or a checkpoint's, selections forced to a wanted hit rate where a grid says so.

    Full attention has a batch of its own; it is the reference of every pair.
    """

    module: ClassVar[str] = "equal_memory"
    bench: ClassVar[BenchName] = "offload"

    def cells(self) -> list[SpeedCell]:
        """Return every cell: at each context full first, then the variants at their budgets and hit rates."""
        found = []
        for grid in self.grids:
            for context in grid.contexts:
                found.append(self._sized(self.cell(replace(grid, prompts="whole"), FULL, None, context)))
                for variant in grid.variants:
                    for budget in self.budgets(grid, variant) if variant != FULL else ():
                        cell = self._sized(self.cell(grid, variant, budget, context))
                        rates = grid.hits.get(variant, ())
                        found += [replace(cell, params={**cell.params, "hit_rate": rate}) for rate in rates] or [cell]
        return found

    def setting(self, grid: Grid) -> dict[str, Any]:
        """Return the parameters that tell cells of one variant apart."""
        return {"hit_rate": None}

    def decoded_tokens(self, grid: Grid) -> int:
        """Return the tokens that a cache takes after the prompt: a block's, and that of the step before it."""
        return grid.steps + 1

    def _sized(self, cell: SpeedCell) -> SpeedCell:
        """Return a cell with as many sequences as the memory holds, and the bytes that say so."""
        grid, config = cell.grid, config_of(self.run, self.model_name(cell), cell.context)
        memory = grid.sequences * cell.context * config.kv_bytes_per_token(self.dtype.itemsize)
        shape = CacheShape(config, 1, cell.context, torch.device("meta"), self.dtype, self.decoded_tokens(grid))
        try:
            device, host = footprint(self.method(cell), shape)
        except LongDecodeError:
            device, host = 0, 0  # timing the cell will meet the same error and record it
        most = min(MAX_BATCH, memory // max(1, device), (grid.host_gib << 30) // max(1, host))
        params = {
            **cell.params, **self.setting(grid), "memory_bytes": memory, "device_bytes_per_sequence": device,
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
        failure: Exception | None = None
        try:
            region = HostBuffer(rounded if rounded <= most else need, self.device).bytes
            values = torch.randn(_FILL_BYTES // self.dtype.itemsize, device=self.device).to(self.dtype)
            for part in region.split(_FILL_BYTES):
                part.copy_(values.view(torch.uint8)[: part.numel()], non_blocking=True)
            torch.cuda.synchronize(self.device)
        except Exception as error:  # the cells that need it will say why
            failure = error
        free_memory(self.device, failure)

    def reference(self, cell: SpeedCell) -> Case:
        """Return full attention's steps at its own batch."""
        grid = cell.grid
        full = replace(cell, method=FULL, variant=FULL, batch=grid.sequences, budget=FULL_BUDGET)
        return self.once(("full", grid.steps, grid.rounds), partial(self.prepare, full))

    def case(self, cell: SpeedCell) -> Case:
        """Prepare a variant's steps.

        Raises:
            DeviceMemoryError: not one sequence fits the memory.
        """
        one, memory = cell.params["device_bytes_per_sequence"], cell.params["memory_bytes"]
        if one > memory:
            raise DeviceMemoryError(f"one sequence of {cell.variant} needs {one:,} bytes; {memory:,} are for all")
        case = self.reference(cell) if cell.variant == FULL else self.prepare(cell)
        weights = self.model(cell).read_bytes // cell.batch
        read = weights + self.method(cell).traffic(cell.context, self.dtype.itemsize).total_bytes
        return replace(case, bytes_min=read)

    def prepare(self, cell: SpeedCell) -> Case:
        """Make a case of decode steps that ends with a query over the whole context.

        One step more runs before, untimed, so that the first timed one finds the blocks of the step before it.
        """
        decoder, method, steps = self.model(cell).decoder, self.method(cell), cell.grid.steps
        shape = decoder.cache_shape(cell.batch, cell.context, self.decoded_tokens(cell.grid))
        cache = method.make_cache(shape) or DenseCache(shape)
        fill_cache(cache, cell.context - steps, self.run.seed)
        forced = self._forced(method, cell)
        stepper = new_stepper(decoder, cache, method, cell.context - steps - 1)
        plain = stepper_case(stepper, stepper.step, cell.variant, steps)
        _, advance, _ = plain.keep

        def reset() -> None:
            plain.reset()
            if forced is not None:
                forced.rewind()
            advance()

        def found() -> Mapping[str, Any]:
            """Run the block once more and count what came from host memory for one token of one sequence."""
            reset()
            before = moved_bytes(cache)
            plain.run()
            return fetched(cache, before, cell.batch * steps)

        return replace(plain, calls=steps * cell.batch, reset=reset, keep=(*plain.keep, forced), found=found)

    def _forced(self, method: AttentionMethod, cell: SpeedCell) -> ForcedSelection | None:
        """Replace a method's selections by drawn ones of the cell's hit rate; ``None`` where it selects for itself.

        Raises:
            UnsupportedCellError: its selections cannot be forced.
        """
        rate, steps = cell.params.get("hit_rate"), cell.grid.steps + 1
        if rate is None:
            return None
        if not isinstance(method, Offloadable) or method.looks_ahead:
            raise UnsupportedCellError(f"{cell.variant} reads no listed blocks, or guesses them a layer early")
        lists = (steps, method.config.num_layers, cell.batch, method.config.num_kv_heads, method.listed_blocks)
        drawn = draw_selections(lists, method.block_tokens, cell.context - steps, rate, self.device, self.run.seed)
        return ForcedSelection(method, drawn)


def footprint(method: AttentionMethod, shape: CacheShape) -> tuple[int, int]:
    """Return the bytes of a cache and of what the method keeps, on the device and on the host.

    On the meta device nothing is allocated.
    """
    state = method.decode_in(method.make_cache(shape) or DenseCache(shape))
    return state.cache.nbytes() + held_bytes(state.method_state), state.cache.host_nbytes()


def held_bytes(kept: Any) -> int:
    """Return the bytes of all tensors in what a method keeps, each once."""
    seen: dict[int, int] = {}

    def visit(part: Any) -> None:
        if isinstance(part, Tensor):
            seen[id(part)] = part.nbytes
        elif is_dataclass(part):
            visit([getattr(part, item.name) for item in fields(part)])
        elif isinstance(part, dict | list | tuple):
            for value in part.values() if isinstance(part, dict) else part:
                visit(value)

    visit(kept)
    return sum(seen.values())


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
