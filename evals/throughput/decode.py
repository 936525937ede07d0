"""The decode bench: one model, every context and batch, each variant in pairs with our own full attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import LongDecodeError
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.evals.records import TimedStage
from longdecode.evals.throughput import steps
from longdecode.evals.throughput.harness import Bench, SpeedCell
from longdecode.evals.throughput.spec import FULL, Grid
from longdecode.evals.throughput.timing import Case

PREFILL_CHUNK_TOKENS = 16384
ONE_OFF_ROUNDS = 3
"""Rounds of prefill, setup and the stock loop, a step of which takes a tenth of a second over 128K tokens."""
DRAFT_ROOM = 65
"""Decoded tokens that an evicting drafter's cache has room for: the longest draft and one more."""
SAMPLE_BUDGET = 4096
"""A budget in tokens that every method can honour, for questions whose answer does not depend on it."""


class DecodeBench(Bench):
    """Times the steps of variants on one model, their parts, prefill and setup, tree passes and the stock loop.

    The variants of a place share a dense cache; those with a cache of their own make it for their cells.
    """

    bench = "decode"

    def cells(self) -> list[SpeedCell]:
        """Return every cell, grid by grid, context by context: full first, then the variants."""
        places = ((grid, context, batch) for grid in self.grids for context in grid.contexts for batch in grid.batches)
        return [cell for place in places for cell in self._cells(*place)]

    def _cells(self, grid: Grid, context: int, batch: int) -> Iterator[SpeedCell]:
        full = self.steps_of(grid, FULL, context, batch)[0]
        short = replace(grid, rounds=min(grid.rounds, ONE_OFF_ROUNDS))
        if grid.bench == "prefill":
            yield replace(full, grid=short, stage="prefill")
        elif grid.bench == "hf_full":
            yield replace(full, grid=short, method="hf_full", variant="hf_full")
        elif grid.bench == "rows":
            for rows in grid.rows:
                yield replace(full, stage="forward_rows", params={"rows": rows, "mask": "tree"})
        else:
            for variant in dict.fromkeys((FULL, *grid.variants)):
                for step in self.steps_of(grid, variant, context, batch):
                    yield from (replace(step, stage=stage) for stage in self._stages(step))
                    yield replace(step, grid=short, stage="setup")

    def _stages(self, step: SpeedCell) -> tuple[TimedStage, ...]:
        """Return what is timed of a variant: its step or the parts of a speculative one, and its correction."""
        try:
            method = self.method(step, SAMPLE_BUDGET if step.budget_tokens else None)
        except LongDecodeError:  # its cells will say why this model cannot have it
            return ("step",)
        if method.draft is not None:
            return ("speculative_step", "draft", "verify", "keep")
        return ("step", "correction") if method.correction is not None else ("step",)

    def reference(self, cell: SpeedCell) -> Case | None:
        """Return full attention's steps; prefill and setup stand alone."""
        return None if cell.stage in ("prefill", "setup") else self.full(cell)

    def case(self, cell: SpeedCell) -> Case:
        """Prepare a cell of any stage; Full against itself shows how far from 1 a ratio of the same comes out."""
        case = self.full(cell) if (cell.variant, cell.stage) == (FULL, "step") else self.prepare(cell)
        params = dict[str, Any]()
        if cell.method != "hf_full":
            method = self.method(cell)
            if cell.stage == "correction" and method.correction is not None:
                params |= {"correction": method.correction.mode, "correction_period": method.correction.period}
            if method.draft is not None:
                params["draft_tokens"] = method.draft.tokens
        return replace(case, params=params, bytes_min=self._bytes(cell))

    def prepare(self, cell: SpeedCell) -> Case:
        """See ``Bench.prepare``; of a drafter, which has no plain step, ``step`` is the speculative one."""
        variant, context, stage, block = cell.variant, cell.context, cell.stage, cell.grid.steps
        if variant == "hf_full":
            source = self.run.models[self.name].checkpoint() if self.name in self.run.models else self.name
            return steps.stock_case(source, context, cell.batch, self.device, self.dtype)
        decoder, method = self.decoder(cell), self.method(cell)
        if stage == "setup":
            method = (method.draft and method.draft.method) or method
            return steps.setup_case(method, self._cache_for(cell, method), variant, context - block)
        cache = self._cache_for(cell, method)
        if stage == "prefill":
            return steps.prefill_case(decoder, cache, variant, context, PREFILL_CHUNK_TOKENS, self.run.seed)
        if stage == "forward_rows":
            return steps.rows_case(decoder, cache, method, variant, context, cell.params["rows"])
        stage = "speculative_step" if stage == "step" and method.draft else stage
        return steps.step_case(decoder, cache, method, variant, context, block, stage)

    def _cache_for(self, cell: SpeedCell, method: AttentionMethod) -> KVCache:
        """Return a filled cache of the method's own, or the dense one that the place's cells share."""
        decoded = min(cell.context - 1, max(cell.grid.steps, DRAFT_ROOM))
        shape = self.decoder(cell).cache_shape(cell.batch, cell.context, decoded)
        fill = partial(steps.fill_cache, tokens=cell.context - cell.grid.steps, seed=self.run.seed)
        own = method.make_cache(shape)
        return fill(own) if own else self.once("dense", lambda: fill(DenseCache(shape)))

    def _bytes(self, cell: SpeedCell) -> int | None:
        """Return bytes that a call must read: weights once a pass, and what attention reads for every sequence."""
        decoder, element = self.decoder(cell), self.dtype.itemsize
        weights = decoder.weights.nbytes()
        whole = weights + cell.batch * cell.context * decoder.config.kv_bytes_per_token(element)
        if cell.stage in ("correction", "forward_rows", "verify") or cell.method == "hf_full":
            return whole
        if cell.stage in ("keep", "prefill", "setup"):
            return None
        method = self.method(cell)
        if method.draft is not None:
            drafted = method.draft.draft_bytes(cell.context, element, weights, cell.batch)
            return drafted if cell.stage == "draft" else drafted + whole
        return weights + cell.batch * method.traffic(cell.context, element).total_bytes
