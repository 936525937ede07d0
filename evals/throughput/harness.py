"""The harness of every benchmark: cells, each prepared as a case, gated, timed in pairs and recorded.

A benchmark is a ``Bench``: it lists its cells and prepares the case of each, and the reference that it is timed with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import parse_config, read_config
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import resolve_dtype
from longdecode.engine.errors import ContextLimitError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.evals import provenance
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.fingerprint import file_hashes, hash_texts, speed_code_hash
from longdecode.evals.gate import Gate, attempt, free_memory
from longdecode.evals.model_job import ModelJob
from longdecode.evals.records import BenchName, Key, Provenance, SpeedRecord, TimedStage, WeightsKind, speed_key
from longdecode.evals.run_config import RunConfig
from longdecode.evals.specs import MethodSpec
from longdecode.evals.store import Store
from longdecode.evals.throughput.spec import FULL, RAW_SHAPES, Grid, code_module, grids_of, models_of
from longdecode.evals.throughput.timing import Case, Guard, clock_for, time_pair

T = TypeVar("T")


def shape_config(name: str, positions: int = 0) -> ModelConfig:
    """Return the ``ModelConfig`` of a shape, with room for at least this many positions."""
    config = parse_config(RAW_SHAPES[name], f"shape {name}")
    return replace(config, max_positions=max(config.max_positions, positions))


def config_of(run: RunConfig, name: str, positions: int = 0) -> ModelConfig:
    """Return the ``ModelConfig`` of a model of the configuration or of a shape; nothing is loaded."""
    return read_config(run.models[name].checkpoint()) if name in run.models else shape_config(name, positions)


class Shape(ModelJob):
    """A shape with random weights and room for at least so many positions."""

    def __init__(self, config: RunConfig, model: str, device: torch.device, positions: int):
        self.config, self.model, self.device = config, model, device
        self.dtype = resolve_dtype(config.dtype, device)
        self.model_config = shape_config(model, positions)
        self.model_hash = hash_texts([model, repr(RAW_SHAPES[model]), str(config.seed)])

    @cached_property
    def decoder(self) -> Decoder:
        """The shape on the job's device."""
        return random_decoder(self.model_config, self.config.seed, self.device, self.dtype)


@dataclass(frozen=True, slots=True)
class SpeedCell:
    """One thing to time at one size; see ``SpeedRecord`` for the fields."""

    grid: Grid = field(repr=False)
    bench: BenchName
    method: str
    variant: str
    stage: TimedStage
    context: int
    batch: int
    budget: Budget = FULL_BUDGET
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Tell this cell's record from the job's others."""
        return speed_key(self, self.budget.text)

    @property
    def budget_tokens(self) -> int | None:
        """The budget in tokens at this cell's context."""
        return self.budget.tokens(self.context)


SpeedStore = Store[SpeedCell, SpeedRecord]


class Bench:
    """One throughput job: its run, its device, and how its cells are timed.

    Args:
        run: the configuration.
        name: of the job, see ``spec.jobs_of``.
        device: the device leased for it.
    """

    bench: BenchName
    """Name of the bench in records."""
    gated = True
    """True where variants must pass the conformance gate."""

    def __init__(self, run: RunConfig, name: str, device: torch.device):
        self.run, self.name, self.device = run, name, device
        self.grids = grids_of(run.throughput, name)
        longest = max((context for grid in self.grids for context in grid.contexts), default=0)
        self.models = {
            name: ModelJob(run, name, device) if name in run.models else Shape(run, name, device, longest)
            for name in models_of(run.throughput, name)
        }
        self.dtype = resolve_dtype(run.dtype, device)
        self.clock = clock_for(device)
        self.guard = Guard.of(device)
        self.texts: Sequence[str] = ()
        self._shared: dict[Any, Any] = {}

    def cells(self) -> list[SpeedCell]:
        """Return every cell of the job."""
        raise NotImplementedError

    def case(self, cell: SpeedCell) -> Case:
        """Prepare what a cell times."""
        raise NotImplementedError

    def reference(self, cell: SpeedCell) -> Case | None:
        """Return what a cell is timed in pairs with; prepared once for all cells of a place."""
        raise NotImplementedError

    def place(self, cell: SpeedCell) -> Any:
        """Return what cells that share tensors have in common, timed one after the other: a context and a batch."""
        return cell.context, cell.batch

    def start(self, cells: Sequence[SpeedCell]) -> None:
        """Prepare what all open cells need."""

    def steps_of(self, grid: Grid, variant: str, context: int, batch: int = 1) -> list[SpeedCell]:
        """Return a variant's step at each budget that it takes, with the parameters that it has on its model."""
        spec = self.spec_of(variant)
        params = spec.params_of(grid.timed_on[variant])
        step = SpeedCell(grid, self.bench, spec.method, variant, "step", context, batch, params=params)
        return [replace(step, budget=budget) for budget in (grid.budgets if spec.takes_budget else (FULL_BUDGET,))]

    def spec_of(self, variant: str) -> MethodSpec:
        """Return what the run says of a variant; full attention needs no entry there."""
        return self.run.methods.get(variant) or MethodSpec(variant)

    def method(self, cell: SpeedCell, budget_tokens: int | None = None) -> AttentionMethod:
        """Build a cell's method, at its budget unless another is given.

        Raises:
            UnsupportedCellError: it cannot honour the budget on this model.
        """
        model = self.model_of(cell)
        return self.spec_of(cell.variant).build(budget_tokens or cell.budget_tokens, model.model_config, model.model)

    def model_name(self, cell: SpeedCell) -> str:
        """Return the model that a cell runs on; of kernels the shape whose heads they have."""
        return cell.grid.timed_on.get(cell.variant, cell.grid.model)

    def model_of(self, cell: SpeedCell) -> ModelJob:
        """Return a cell's model, a checkpoint or a shape."""
        return self.models[self.model_name(cell)]

    def decoder(self, cell: SpeedCell) -> Decoder:
        """Return a cell's model on the device, loaded once.

        Raises:
            CheckpointError: the checkpoint cannot be loaded.
            ContextLimitError: the context is over the checkpoint's limit; random weights have none.
        """
        model = self.model_of(cell)
        if cell.context > (limit := model.model_config.max_positions):
            raise ContextLimitError(f"context {cell.context} is over the checkpoint's limit of {limit} tokens")
        return model.decoder

    def prepare(self, cell: SpeedCell) -> Case:
        """Make the case of a cell, without what a record says of it."""
        raise NotImplementedError

    def full(self, cell: SpeedCell, **changes: Any) -> Case:
        """Return the steps of full attention beside a cell, prepared once for all cells of a place."""
        full = replace(cell, method=FULL, variant=FULL, stage="step", budget=FULL_BUDGET, params={}, **changes)
        return self.once((FULL, cell.grid.steps, cell.grid.cached_tokens), partial(self.prepare, full))

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Return what ``make`` made when this place's cells first asked for the key."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found

    def time(self, cells: Sequence[SpeedCell], store: SpeedStore, gate: Gate) -> Iterator[SpeedRecord]:
        """Time cells place by place and yield each stored record; one that cannot run ends as a status."""
        self.start(cells)
        places: dict[Any, list[SpeedCell]] = {}
        for cell in cells:
            places.setdefault(self.place(cell), []).append(cell)
        for members in places.values():
            for cell in members:
                made, status, reason = attempt(partial(self._timed, cell, gate), self.device)
                store.add(record := made or self._record(cell, status=status, reason=reason))
                yield record
                free_memory(self.device)
            self._shared.clear()
            free_memory(self.device)

    def _timed(self, cell: SpeedCell, gate: Gate) -> SpeedRecord:
        """Time a cell past its gate in pairs with its reference; where that does not fit, alone, and say so."""
        if self.gated:
            self.decoder(cell)
            if cell.variant in self.run.methods and (refusal := gate.refusal(cell.variant, self.model_name(cell))):
                raise refusal
        reference, status, reason = attempt(partial(self.reference, cell), self.device)
        if status and (status != "oom" or (cell.variant, cell.stage) == (FULL, "step")):
            return self._record(cell, status=status, reason=reason)
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        case = self.case(cell)
        samples = time_pair(case, reference, rounds=cell.grid.rounds, clock=self.clock, guard=self.guard)
        mine = {id(cache): cache.nbytes() for cache in case.caches}
        beside = sum(cache.nbytes() for cache in reference.caches if id(cache) not in mine) if reference else 0
        return self._record(
            cell, status="ok", samples=samples, reference=reference.variant if reference else None,
            reason=f"no ratio over {FULL}: {reason}" if status else None,
            bytes_min=case.bytes_min,
            expected_bytes=self.decoder(cell).weights.resident_bytes() + sum(mine.values()) if mine else None,
            peak_bytes=torch.cuda.max_memory_allocated(self.device) - beside if cuda and mine else None,
            params={**cell.params, **case.params, **case.found()}, **self.guard.summary(),
        )  # fmt: skip

    def origin(self, cell: SpeedCell) -> Provenance:
        """Collect the provenance of a cell: its code hash covers what times it and the two methods of its pairs."""
        spec, name = self.run.methods.get(cell.variant) if self.gated else None, self.model_name(cell)
        settings = {
            "profile": self.run.profile, "job": self.name, "seed": self.run.seed, "rounds": cell.grid.rounds,
            "steps": cell.grid.steps, "cell": cell.key, "params": dict(cell.params),
            "torch": provenance.versions()["torch"],
        }  # fmt: skip
        return provenance.collect(
            settings=settings, code=self._code(cell.method), device=self.device, dtype=self.dtype,
            model=self.models[name].model_hash if self.gated else "none",
            data=hash_texts([*file_hashes(spec.files_of(name)), *self.texts]) if spec else "none",
        )  # fmt: skip

    @cache  # noqa: B019
    def _code(self, method: str) -> str:
        return speed_code_hash(code_module(self.name), (FULL, method) if self.gated else ())

    def _record(self, cell: SpeedCell, **values: Any) -> SpeedRecord:
        """Return the record of a cell, timed or closed by a status."""
        name = self.model_name(cell)
        weights: WeightsKind = "none" if not self.gated else "checkpoint" if name in self.run.models else "random"
        fields: dict[str, Any] = {
            "profile": self.run.profile, "bench": cell.bench, "model": name, "weights": weights, "method": cell.method,
            "variant": cell.variant, "params": dict(cell.params), "stage": cell.stage, "context": cell.context,
            "batch": cell.batch, "budget": cell.budget.text, "budget_tokens": cell.budget_tokens,
            "seed": self.run.seed, "provenance": self.origin(cell),
        }  # fmt: skip
        return SpeedRecord(**fields | values)
