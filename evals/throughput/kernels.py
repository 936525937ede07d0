"""The kernel bench: each op and its public peers at each size, in pairs, after a correctness gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, product
from typing import Any

import torch

from longdecode.engine.errors import GateError
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.failures import free_memory
from longdecode.evals.records import SpeedRecord, SpeedSample, Status
from longdecode.evals.throughput.attention_cases import (
    decode_attention_case,
    page_score_case,
    rows_case,
    rows_of,
    rows_subject,
    selection_case,
    sparse_case,
    token_logits_case,
    topk_case,
)
from longdecode.evals.throughput.ceiling import ceiling_cells, make_probe
from longdecode.evals.throughput.cells import SpeedCell, SpeedStore
from longdecode.evals.throughput.hybrid_cases import hybrid_case, topk_into_case
from longdecode.evals.throughput.kernel_case import Case, Inputs, Size
from longdecode.evals.throughput.launches import recorded
from longdecode.evals.throughput.models import shape_config
from longdecode.evals.throughput.peers import PeerUnavailableError, peers_of
from longdecode.evals.throughput.spec import HYBRID_OPS, OPS, ROWS_OP, HybridSpec, KernelSpec, RowsSpec
from longdecode.evals.throughput.speed_job import SpeedJob
from longdecode.evals.throughput.step_block import captured
from longdecode.evals.throughput.step_cases import (
    add_rms_norm_case,
    linear_case,
    projection_shapes,
    rope_append_case,
)
from longdecode.evals.throughput.timing import Block, long_enough, swapped

OURS = "longdecode"
BLOCK_US = 2000.0
"""Length of one timed block: many launches, and time enough to read the clocks meanwhile."""
_BUDGETED = ("sparse_decode_attention", "sparse_decode_attention_tokens", "topk_select", "selection")
_CONTEXT_ONLY = ("decode_attention", "page_score", "token_logits")
_SIMPLE: dict[str, Callable[[Size], Case]] = {
    "decode_attention": decode_attention_case,
    "page_score": page_score_case,
    "topk_select": topk_case,
    "selection": selection_case,
    "token_logits": token_logits_case,
    "add_rms_norm": add_rms_norm_case,
    "rope_append": rope_append_case,
    "sparse_decode_attention": lambda size: sparse_case(size, 16),
    "sparse_decode_attention_tokens": lambda size: sparse_case(size, 1),
    "hybrid_attention": hybrid_case,
    "hybrid_attention_random": partial(hybrid_case, random_lengths=True),
    "hybrid_attention_scored": partial(hybrid_case, scored=True),
    "topk_select_into": topk_into_case,
}


def kernel_cells(spec: KernelSpec, device: torch.device) -> list[SpeedCell]:
    """Return the ceiling's probes, then every op at every size, ours first and each peer after it."""
    cells = ceiling_cells(device)
    for op in OPS:
        if op not in spec.ops:
            continue
        if op in HYBRID_OPS:
            cells += _hybrid_cells(op, spec.hybrid) if spec.hybrid else []
            continue
        if op == ROWS_OP:
            cells += _rows_cells(spec.rows) if spec.rows else []
            continue
        depends = op in _BUDGETED or op in _CONTEXT_ONLY
        for context in spec.contexts if depends else (0,):
            for batch in spec.batches:
                for budget in spec.budgets if op in _BUDGETED else (FULL_BUDGET,):
                    for label in (OURS, *peers_of(op)):
                        cells.append(SpeedCell("kernel", op, label, "op", context, batch, budget))
    return cells


def _hybrid_cells(op: str, spec: HybridSpec) -> Iterator[SpeedCell]:
    """Yield an op of hybrid layers at each size; scores and selections need a retrieval head."""
    subjects = [op]
    if op == "hybrid_attention":
        subjects = [op if lengths == "full" else f"{op}_{lengths}" for lengths in spec.lengths]
    counts = [heads for heads in spec.full_heads if heads > 0 or op == "hybrid_attention"]
    for subject, context, batch, budget, heads in product(subjects, spec.contexts, spec.batches, spec.budgets, counts):
        for label in (OURS, *peers_of(subject)):
            yield SpeedCell("kernel", subject, label, "op", context, batch, budget, {"full_heads": heads})


def _rows_cells(spec: RowsSpec) -> Iterator[SpeedCell]:
    """Yield dense attention of several rows at each size."""
    subjects = [
        rows_subject(rows, tree) for tree, widths in ((False, spec.causal), (True, spec.tree)) for rows in widths
    ]
    for subject, context, batch in product(subjects, spec.contexts, spec.batches):
        for label in (OURS, *peers_of(subject)):
            yield SpeedCell("kernel", subject, label, "op", context, batch)


def make_case(op: str, size: Size) -> Case:
    """Make the case of an op.

    Raises:
        UnsupportedCellError: the op has nothing to do at this size.
    """
    if op in _SIMPLE:
        return _SIMPLE[op](size)
    if (wanted := rows_of(op)) is not None:
        return rows_case(size, *wanted)
    rows, columns, gated = projection_shapes(size)[op]
    return linear_case(size, op, rows, columns, gated)


class KernelBench:
    """Times the open cells of the kernels' job, one op and size at a time."""

    def __init__(self, job: SpeedJob, store: SpeedStore, spec: KernelSpec):
        self.job = job
        self.store = store
        self.spec = spec
        self.config = shape_config(spec.shape)

    def run(self) -> None:
        """Time all cells; a size that cannot run ends as a status."""
        for cell in self.store.open(self.store.cells):
            if cell.bench == "ceiling":
                self._guarded([cell], partial(self._probe, cell))
        kernels = [cell for cell in self.store.cells if cell.bench == "kernel"]
        for _, group in groupby(kernels, _place):
            cells = list(group)
            if self.store.open(cells):
                self._guarded(self.store.open(cells), partial(self._op, cells))

    @torch.no_grad()
    def _probe(self, cell: SpeedCell) -> None:
        probe = make_probe(cell, self.spec.shape, self.job.device, self.job.dtype)
        block = Block(cell.label, captured(probe.call, self.job.device), keep=probe)
        samples = self.job.time(long_enough(block, self.job.clock, BLOCK_US), None, self.spec.rounds)
        self.store.add(self.job.timed(cell, "none", samples, None, bytes_min=probe.read_bytes))

    @torch.no_grad()
    def _op(self, cells: Sequence[SpeedCell]) -> None:
        """Time our kernel, gated, in pairs with each peer; our own row holds the pairs with the first peer that ran."""
        own, peers = cells[0], cells[1:]
        size = Size(self.config, own.context, own.batch, own.budget_tokens, self.job.device, self.job.dtype, own.params)
        torch.manual_seed(self.job.run.seed)
        _gate(make_case(own.subject, size.smaller()))
        case = make_case(own.subject, size)
        case.refuse_if_too_large()
        sets = case.make_sets(case.sets)
        with recorded(self.job.device) as launches:
            mine = case.ours(sets[0])
        block = self._block(OURS, [partial(case.ours, x) for x in sets], sets)
        compared = False
        for cell in peers:
            try:
                samples = self._pair(case, cell, sets, mine, block)
            except Exception as error:  # whatever stops a peer is its row's reason, not the end of the job
                self._close(cell, _peer_status(error), error)
                free_memory(self.job.device, error)
                continue
            self._add(case, cell, swapped(samples), OURS, {})
            if not compared:
                self._add(case, own, samples, cell.label, launches.as_record())
                compared = True
            free_memory(self.job.device)
        if not compared:
            self._add(case, own, self.job.time(block, None, self.spec.rounds), None, launches.as_record())

    def _pair(self, case: Case, cell: SpeedCell, sets: Sequence[Inputs], mine: Any, block: Block) -> list[SpeedSample]:
        """Time our block against a peer's on the same inputs, once the peer was seen to compute the same."""
        calls = peers_of(cell.subject)[cell.label](case, sets)
        if case.same is not None and not case.same(calls[0](), mine):
            raise GateError(f"{cell.label} gives another result than ours on the same inputs")
        return self.job.time(block, self._block(cell.label, calls, sets), self.spec.rounds)

    def _block(self, label: str, calls: Sequence[Callable[[], Any]], sets: Sequence[Inputs]) -> Block:
        """Make one block of all calls of a rotation, as long as a timed block should be."""

        def run() -> None:
            for call in calls:
                call()

        block = Block(label, captured(run, self.job.device), calls=len(calls), keep=(calls, sets))
        return long_enough(block, self.job.clock, BLOCK_US)

    def _add(
        self, case: Case, cell: SpeedCell, samples: list[SpeedSample], reference: str | None, launch: dict[str, Any]
    ) -> None:
        if not self.store.open([cell]):
            return
        moved = case.peer_bytes.get(cell.label, case.read_bytes)
        record: SpeedRecord = self.job.timed(cell, "none", samples, reference, bytes_min=moved, launch=launch)
        params = {**cell.params, **case.params, "sets": case.sets, "cold": case.cold}
        self.store.add(record.model_copy(update={"params": params}))

    def _close(self, cell: SpeedCell, status: Status, error: Exception) -> None:
        if self.store.open([cell]):
            self.store.add(self.job.closed(cell, "none", status, f"{type(error).__name__}: {error}"))

    def _guarded(self, cells: Sequence[SpeedCell], work: Callable[[], None]) -> None:
        """Do some work; an error that belongs to its cells becomes their status."""
        failure: Exception | None = None
        try:
            work()
        except Exception as error:
            failure = error
        if failure is not None:
            unavailable = isinstance(failure, PeerUnavailableError)
            status: Status | None = "unsupported" if unavailable else self.job.status_or_raise(failure)
            if status is not None:
                for cell in self.store.open(cells):
                    self.store.add(self.job.closed(cell, "none", status, str(failure)))
            free_memory(self.job.device, failure)
        free_memory(self.job.device)


def _place(cell: SpeedCell) -> tuple[Any, ...]:
    """Return what cells timed on the same inputs have in common."""
    return cell.subject, cell.context, cell.batch, cell.budget, dict(cell.params)


def _peer_status(error: Exception) -> Status:
    """Return the status that a peer's failure gives its row; ours goes on without it."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "oom"
    return "failed_gate" if isinstance(error, GateError) else "unsupported"


def _gate(case: Case) -> None:
    """Hold our op against its definition on fresh random inputs of a smaller or equal size.

    Raises:
        GateError: they differ by more than rounding.
        UnsupportedCellError: the op has nothing to do at this size.
    """
    (inputs,) = case.make_sets(1)
    case.check(inputs, case.ours(inputs))
