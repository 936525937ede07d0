"""The kernel bench: each op and its public peers at each size, in pairs, after a correctness gate.

With it go the probes of the device's read bandwidth, against which all floors are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch

from longdecode.engine.errors import GateError, LongDecodeError, UnsupportedCellError
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.gate import attempt
from longdecode.evals.throughput.harness import Bench, SpeedCell, shape_config
from longdecode.evals.throughput.spec import OPS, ROWS_OP, Grid
from longdecode.evals.throughput.steps import random_tree
from longdecode.evals.throughput.timing import Case, captured, long_enough
from longdecode.kernels.bench.ops import Inputs, Op, Size, make_op
from longdecode.kernels.bench.peers import PEERS

OURS = "longdecode"
COLD_BYTES = 3 * (60 << 20)
"""Bytes that a rotation covers, three times the last-level cache of an H200, so that no call finds its input there."""
MAX_SETS = 64
CASE_US = 2000.0
"""Length of one timed run: many launches, and time enough to read the clocks meanwhile."""
_PLACE, _CPU_PLACE = (131072, 4), (4096, 1)
"""Context and batch of the dense decode shape at which an H200 read fastest (one layer of Llama-3-8B)."""
_SUM_BYTES, _CPU_SUM_BYTES, _CPU_LINEAR_ROWS = 8 << 30, 64 << 20, 4096


class KernelBench(Bench):
    """Times ops without a model; ours in pairs with the first peer that runs, each peer in pairs with ours."""

    bench = "kernel"
    gated = False

    def cells(self) -> list[SpeedCell]:
        """Return the bandwidth probes, then every op at every size, ours first and each peer after it."""
        grid = self.grids[0] if self.grids else Grid("kernels")
        place = _PLACE if self.device.type == "cuda" else _CPU_PLACE
        places = {"torch_sum": (0, 1), "torch_flash": place, "longdecode": place, "longdecode_linear": (0, 1)}
        probes = [SpeedCell(grid, "ceiling", "read_bandwidth", name, "op", *at) for name, at in places.items()]
        return probes + [cell for grid in self.grids for op in grid.ops for cell in _cells(grid, op)]

    def place(self, cell: SpeedCell) -> Any:
        """See ``Bench.place``: an op at a size."""
        return cell.bench, cell.method, cell.context, cell.batch, cell.budget, str(cell.params)

    @torch.no_grad()
    def case(self, cell: SpeedCell) -> Case:
        """Prepare a probe, ours past its gate, or a peer that was seen to compute the same.

        Raises:
            UnsupportedCellError: a peer cannot run here, or not at this size.
        """
        if cell.bench == "ceiling":
            return long_enough(self._probe(cell), self.clock, CASE_US)
        op, sets = self.once("op", partial(self._gated, cell))
        if cell.variant == OURS:
            return self.once(OURS, lambda: self._rotation(OURS, op, [partial(op.ours, x) for x in sets], op.read_bytes))
        try:
            calls = [PEERS[_op_of(cell)][cell.variant](self._size(cell), x) for x in sets]
            found = calls[0]()
            with _gating():
                op.require_same(found, op.ours(sets[0]), self.dtype)
            return self._rotation(cell.variant, op, calls, op.peer_bytes or op.read_bytes)
        except (LongDecodeError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:  # whatever stops a peer is its row's reason, not the end of the job
            raise UnsupportedCellError(f"{type(error).__name__}: {error}") from error

    def reference(self, cell: SpeedCell) -> Case | None:
        """Return ours for a peer, and for ours the first peer that runs; probes stand alone."""
        if cell.bench == "ceiling":
            return None
        ours = self.case(replace(cell, variant=OURS))
        if cell.variant != OURS:
            return ours
        rivals = (replace(cell, variant=peer) for peer in PEERS[_op_of(cell)])
        return next((case for rival in rivals if (case := attempt(partial(self.case, rival), self.device)[0])), None)

    def _probe(self, cell: SpeedCell) -> Case:
        """Return a way to read memory, with its inputs there; all floors are taken from the fastest.

        A sum, dense attention of torch and of ours, and our largest projection.
        """
        cuda = self.device.type == "cuda"
        if cell.variant == "torch_sum":
            values = torch.ones((_SUM_BYTES if cuda else _CPU_SUM_BYTES) // 4, device=self.device)
            return Case(cell.variant, captured(values.sum, self.device), keep=values, bytes_min=values.nbytes)
        size = self._size(cell)
        if not cuda:
            size = replace(size, vocab=min(size.vocab, _CPU_LINEAR_ROWS))
        op = make_op("linear_lm_head" if cell.variant == "longdecode_linear" else "decode_attention", size)
        inputs, peers = op.draw(), PEERS["decode_attention"]
        call = peers[cell.variant](size, inputs) if cell.variant in peers else lambda: op.ours(inputs)
        return Case(cell.variant, captured(call, self.device), keep=(inputs, call), bytes_min=op.read_bytes)

    def _gated(self, cell: SpeedCell) -> tuple[Op, list[Inputs]]:
        """Gate an op at a smaller size, then draw its input sets."""
        size = self._size(cell)
        torch.manual_seed(self.run.seed)
        with _gating():
            make_op(_op_of(cell), smaller(size)).gate(size.dtype)
            op = make_op(_op_of(cell), size)
        return op, [op.draw() for _ in range(sets_of(op, self.device))]

    def _rotation(self, variant: str, op: Op, calls: list[Callable[[], Any]], moved: int) -> Case:
        """Return the calls on all sets, one after the other, as one graph."""

        def rotate() -> None:
            for call in calls:
                call()

        params = {**op.params, "sets": len(calls), "cold": len(calls) * op.read_bytes >= COLD_BYTES}
        case = Case(variant, captured(rotate, self.device), len(calls), keep=calls, bytes_min=moved, params=params)
        return long_enough(case, self.clock, CASE_US)

    def _size(self, cell: SpeedCell) -> Size:
        config, own = shape_config(cell.grid.model), cell.params
        mask = random_tree(own["rows"], self.device)[0] if own.get("mask") == "tree" else None
        return Size(
            config.num_heads, config.num_kv_heads, config.head_dim, config.hidden_size, config.intermediate_size,
            config.vocab_size, cell.context, cell.batch, cell.budget_tokens, self.device, self.dtype,
            own.get("full_heads", 0), own.get("rows", 1), mask, own.get("kv_lengths") == "mixed",
        )  # fmt: skip


def smaller(size: Size) -> Size:
    """Return a size for the correctness gate, no larger in any direction."""
    context = min(size.context, 2048)
    budget = None if size.budget_tokens is None else min(size.budget_tokens, max(16, context // 4))
    return replace(size, context=context, batch=min(size.batch, 2), budget_tokens=budget)


def sets_of(op: Op, device: torch.device) -> int:
    """Count input sets in rotation: enough that the last-level cache is cold, up to a limit."""
    return min(MAX_SETS, max(1, math.ceil(COLD_BYTES / op.read_bytes))) if device.type == "cuda" else 1


@contextmanager
def _gating() -> Iterator[None]:
    """Turn what an op says of its result or its size into the errors that give a cell its status."""
    try:
        yield
    except AssertionError as error:
        raise GateError(" ".join(str(error).split())) from None
    except NotImplementedError as error:
        raise UnsupportedCellError(str(error)) from None


def _cells(grid: Grid, op: str) -> Iterator[SpeedCell]:
    needs = OPS[op]
    contexts = grid.contexts if "contexts" in needs else (0,)
    budgets = grid.budgets if "budgets" in needs else (FULL_BUDGET,)
    extra: list[dict[str, Any]] = [{"rows": rows, "mask": grid.mask} for rows in grid.rows if op == ROWS_OP]
    mixed = {"kv_lengths": "mixed"} if grid.kv_lengths == "mixed" else {}
    extra += [{"full_heads": heads} | mixed for heads in grid.full_heads if "full_heads" in needs]
    for context, batch, budget, params in product(contexts, grid.batches, budgets, extra or [{}]):
        # Rows of several widths are methods of their own in tables.
        name = f"{op}{params['rows']}{'_tree' * (grid.mask == 'tree')}" if op == ROWS_OP else op
        for variant in (OURS, *PEERS[op]):
            yield SpeedCell(grid, "kernel", name, variant, "op", context, batch, budget, params)


def _op_of(cell: SpeedCell) -> str:
    return ROWS_OP if "rows" in cell.params else cell.method
