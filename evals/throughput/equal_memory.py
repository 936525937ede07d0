"""Throughput at equal device memory: each variant decodes as many sequences as one memory for keys and values holds.

A call is one token of one sequence, so that ratios are of throughput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import DeviceMemoryError, LongDecodeError, UnsupportedCellError
from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.failures import free_memory
from longdecode.evals.records import Bench as BenchName
from longdecode.evals.throughput.forced_selection import ForcedSelection, draw_selections
from longdecode.evals.throughput.harness import Bench, SpeedCell, Variants
from longdecode.evals.throughput.models import config_of
from longdecode.evals.throughput.spec import FULL, MAX_BATCH, Grid
from longdecode.evals.throughput.steps import fill_cache, new_stepper, stepper_case
from longdecode.evals.throughput.timing import Case
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.shadowkv.cache import ShadowCache

_FILL_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one sequence: keys, values and what the method keeps on the device, and what lies on the host."""

    device: int
    host: int


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
            names = Variants(self.run, grid.model)
            for context in grid.contexts:
                found.append(self._cell(replace(grid, prompts="whole"), FULL, context, FULL_BUDGET))
                for variant in (v for v in grid.variants if names.method_name(v) != FULL):
                    for budget in grid.budgets if names.takes_budget(variant) else (FULL_BUDGET,):
                        cell = self._cell(grid, variant, context, budget)
                        rates = grid.hits.get(variant, (None,))
                        found += [replace(cell, params={**cell.params, **self.setting(grid, rate)}) for rate in rates]
        return list({cell.key: cell for cell in found}.values())

    def setting(self, grid: Grid, rate: float | None) -> Mapping[str, Any]:
        """Return the parameter that tells cells of one variant apart."""
        return {"hit_rate": rate}

    def decoded_tokens(self, grid: Grid) -> int:
        """Return the tokens that a cache takes after the prompt: a block's, and that of the step before it."""
        return grid.steps + 1

    def model_for(self, grid: Grid, variant: str) -> str:
        """Return the model that a variant runs on."""
        return grid.model

    def _cell(self, grid: Grid, variant: str, context: int, budget: Budget) -> SpeedCell:
        model = self.model_for(grid, variant)
        config, names = config_of(self.run, model, context), Variants(self.run, model)
        memory = grid.sequences * context * config.kv_bytes_per_token(self.dtype.itemsize)
        try:
            method = names.build(variant, budget.tokens(context), config)
            one = footprint(method, config, context, self.decoded_tokens(grid), self.dtype)
        except LongDecodeError:
            one = Footprint(0, 0)  # timing the cell will meet the same error and record it
        most = [MAX_BATCH, memory // max(1, one.device), (grid.host_gib << 30) // max(1, one.host)]
        params = {
            **names.params(variant), **self.setting(grid, None), "memory_bytes": memory,
            "device_bytes_per_sequence": one.device, "host_bytes_per_sequence": one.host, "host_gib": grid.host_gib,
        }  # fmt: skip
        batch = grid.sequences if variant == FULL else max(1, min(most))
        method_name = names.method_name(variant)
        return SpeedCell(grid, self.bench, method_name, variant, "step", context, batch, budget, params)

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
        rounded = 1 << (need - 1).bit_length()
        failure: Exception | None = None
        try:
            region = HostBuffer(rounded if rounded <= cells[0].grid.host_gib << 30 else need, self.device).bytes
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
        model, method = self.model(cell), self.method(cell)
        read = model.read_bytes // cell.batch + method.traffic(cell.context, self.dtype.itemsize).total_bytes
        return replace(case, bytes_min=read)

    def method(self, cell: SpeedCell) -> AttentionMethod:
        """Build a cell's method."""
        name = self.model_name(cell)
        return Variants(self.run, name).build(cell.variant, cell.budget_tokens, self.model(cell).config)

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


def footprint(
    method: AttentionMethod, config: ModelConfig, context: int, decoded: int, dtype: torch.dtype
) -> Footprint:
    """Return the bytes of one sequence of ``context`` tokens, ``decoded`` of them decoded, without allocating any."""
    shape = CacheShape(config, 1, context, torch.device("meta"), dtype, decoded)
    state = method.decode_in(method.make_cache(shape) or DenseCache(shape))
    return Footprint(state.cache.nbytes() + held_bytes(state.method_state), state.cache.host_nbytes())


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
