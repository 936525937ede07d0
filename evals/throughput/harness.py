"""The harness of every benchmark: cells, each prepared as a case, gated, timed in pairs and recorded.

A benchmark is a ``Bench``: it lists its cells and prepares the case of each, and the reference that it is timed with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import device_name, resolve_dtype
from longdecode.engine.errors import ContextLimitError
from longdecode.evals import provenance
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.fingerprint import file_hashes, hash_settings, hash_texts, speed_code_hash
from longdecode.evals.gate import Gate, free_memory, status_of
from longdecode.evals.records import Bench as BenchName
from longdecode.evals.records import Key, Provenance, SpeedRecord, Stage, Weights, op_sizes
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import Store
from longdecode.evals.throughput.guard import Guard
from longdecode.evals.throughput.models import TimedModel, config_of, load_model, model_hash
from longdecode.evals.throughput.spec import FULL, Grid
from longdecode.evals.throughput.timing import Case, clock_for, time_pair
from longdecode.methods.registry import get_method

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpeedCell:
    """One thing to time at one size; see ``SpeedRecord`` for the fields."""

    grid: Grid = field(repr=False)
    bench: BenchName
    method: str
    variant: str
    stage: Stage
    context: int
    batch: int
    budget: Budget = FULL_BUDGET
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Tell this cell's record from the job's others."""
        sizes = op_sizes(self.bench, self.params).values()
        return self.bench, self.method, self.variant, self.stage, self.context, self.batch, self.budget.text, *sizes

    @property
    def budget_tokens(self) -> int | None:
        """The budget in tokens at this cell's context."""
        return self.budget.tokens(self.context)


SpeedStore = Store[SpeedCell, SpeedRecord]


class Bench:
    """One throughput job: its run, its device, and how its cells are timed.

    Args:
        run: the configuration.
        name: of the job, see ``ThroughputSpec.jobs``.
        device: the device leased for it.
    """

    module: ClassVar[str]
    """The module of this room whose imports are the code behind a time."""
    bench: ClassVar[BenchName]
    """Name of the bench in records."""
    gated: ClassVar[bool] = True
    """True where variants must pass the conformance gate."""

    def __init__(self, run: RunConfig, name: str, device: torch.device):
        assert run.throughput is not None
        self.run, self.name, self.device = run, name, device
        self.grids = run.throughput.grids_of(name)
        self.models = {name: model_hash(run, name) for name in run.throughput.models_of(name)}
        self.dtype = resolve_dtype(run.dtype, device)
        self.clock = clock_for(device)
        self.guard = Guard.of(device)
        self.texts: Sequence[str] = ()
        self._origins: dict[tuple[str, str], Provenance] = {}
        self._shared: dict[Any, Any] = {}
        self._loaded: dict[str, TimedModel] = {}

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
        """Return what cells that share tensors have in common; they are timed one after the other."""
        raise NotImplementedError

    def start(self, cells: Sequence[SpeedCell]) -> None:
        """Prepare what all open cells need."""

    def cell(self, grid: Grid, variant: str, budget: Budget | None, context: int, batch: int = 1) -> SpeedCell:
        """Return a step of a variant, with the parameters that it has on its model.

        Args:
            budget: of a variant that takes one.
        """
        spec = self.run.methods.get(variant)
        params = dict(spec.params_of(grid.timed_on[variant])) if spec else {}
        name, budget = spec.method if spec else variant, budget or FULL_BUDGET
        return SpeedCell(grid, self.bench, name, variant, "step", context, batch, budget, params)

    def budgets(self, grid: Grid, variant: str) -> tuple[Budget, ...]:
        """Return the budgets at which a grid times a variant."""
        spec = self.run.methods.get(variant)
        return grid.budgets if spec and spec.takes_budget else (FULL_BUDGET,)

    def method(self, cell: SpeedCell, budget_tokens: int | None = None) -> AttentionMethod:
        """Build a cell's method, at its budget unless another is given.

        Raises:
            UnsupportedCellError: it cannot honour the budget on this model.
        """
        spec, name = self.run.methods.get(cell.variant), self.model_name(cell)
        params = spec.params_of(name) if spec else {}
        config = config_of(self.run, name, cell.context)
        return get_method(cell.method).from_budget(budget_tokens or cell.budget_tokens, config, **params)

    def model_name(self, cell: SpeedCell) -> str:
        """Return the model that a cell runs on; of kernels the shape whose heads they have."""
        return cell.grid.timed_on.get(cell.variant, cell.grid.model)

    def model(self, cell: SpeedCell) -> TimedModel:
        """Return a cell's model, loaded once.

        Raises:
            ContextLimitError: the context is over the checkpoint's limit.
        """
        name = self.model_name(cell)
        if name not in self._loaded:
            positions = max((context for grid in self.grids for context in grid.contexts), default=0)
            self._loaded[name] = load_model(self.run, name, self.device, self.dtype, positions)
        model = self._loaded[name]
        if model.limit is not None and cell.context > model.limit:
            raise ContextLimitError(f"context {cell.context} is over the checkpoint's limit of {model.limit} tokens")
        return model

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Return what ``make`` made when this place's cells first asked for the key."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found

    def time(self, store: SpeedStore, gate: Gate) -> None:
        """Time every open cell, place by place; one that cannot run ends as a status and the rest goes on."""
        self.start(store.open(store.cells))
        places: dict[Any, list[SpeedCell]] = {}
        for cell in store.cells:
            places.setdefault(self.place(cell), []).append(cell)
        for cells in places.values():
            for cell in store.open(cells):
                failure: Exception | None = None
                try:
                    refusal = self._refusal(cell, gate)
                    if refusal is not None:
                        raise refusal
                    store.add(self._timed(cell))
                except Exception as error:
                    failure = error
                if failure is not None:
                    status = status_of(failure)
                    if status is None:
                        raise failure
                    store.add(self._record(cell, status=status, reason=str(failure)))
                free_memory(self.device, failure)
            self._shared.clear()
            free_memory(self.device)

    def _timed(self, cell: SpeedCell) -> SpeedRecord:
        """Time a cell in pairs with its reference; where that does not fit, alone, and say so."""
        reference, problem, failure = None, None, None
        try:
            reference = self.reference(cell)
        except Exception as error:
            failure = error
        if failure is not None:
            if status_of(failure) != "oom" or (cell.variant, cell.stage) == (FULL, "step"):
                raise failure
            problem = f"no ratio over {FULL}: {failure}"
            free_memory(self.device, failure)
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        case = self.case(cell)
        samples = time_pair(case, reference, rounds=cell.grid.rounds, clock=self.clock, guard=self.guard)
        mine = {id(cache): cache.nbytes() for cache in case.caches}
        beside = sum(cache.nbytes() for cache in reference.caches if id(cache) not in mine) if reference else 0
        return self._record(
            cell, status="ok", samples=samples, reference=reference.variant if reference else None, reason=problem,
            bytes_min=case.bytes_min,
            expected_bytes=self.model(cell).resident_bytes + sum(mine.values()) if mine else None,
            peak_bytes=torch.cuda.max_memory_allocated(self.device) - beside if cuda and mine else None,
            params={**cell.params, **case.params, **case.found()}, **self.guard.summary(),
        )  # fmt: skip

    def _refusal(self, cell: SpeedCell, gate: Gate) -> Exception | None:
        """Return the error that bars a cell from being timed: of the conformance gate, or its model's."""
        if not self.gated:
            return None
        self.model(cell)
        return gate.refusal(cell.variant, self.model_name(cell)) if cell.variant in self.run.methods else None

    def origin(self, cell: SpeedCell) -> Provenance:
        """Collect the provenance of a cell: its code hash covers what times it and the two methods of its pairs."""
        where, model = (cell.method, cell.variant), self.model_name(cell)
        if where not in self._origins:
            spec = self.run.methods.get(cell.variant) if self.gated else None
            files = spec.files_of(model) if spec else ()
            self._origins[where] = provenance.collect(
                settings={},
                code=speed_code_hash(self.module, (FULL, cell.method) if self.gated else ()),
                model=self.models.get(model, "none"),
                data=hash_texts([*file_hashes(files), *self.texts]) if spec else "none",
                device=self.device,
                dtype=self.dtype,
            )
        settings = {
            "profile": self.run.profile, "job": self.name, "seed": self.run.seed, "rounds": cell.grid.rounds,
            "steps": cell.grid.steps, "cell": cell.key, "params": dict(cell.params),
            "torch": provenance.versions()["torch"],
        }  # fmt: skip
        mine = hash_settings(settings, device_name(self.device), str(self.dtype))
        return self._origins[where].model_copy(update={"settings_hash": mine})

    def _record(self, cell: SpeedCell, **values: Any) -> SpeedRecord:
        """Return the record of a cell, timed or closed by a status."""
        name = self.model_name(cell)
        weights: Weights = "none" if not self.gated else "checkpoint" if name in self.run.models else "random"
        fields: dict[str, Any] = {
            "profile": self.run.profile, "bench": cell.bench, "model": name, "weights": weights, "method": cell.method,
            "variant": cell.variant, "params": dict(cell.params), "stage": cell.stage, "context": cell.context,
            "batch": cell.batch, "budget": cell.budget.text, "budget_tokens": cell.budget_tokens,
            "seed": self.run.seed, "provenance": self.origin(cell),
        }  # fmt: skip
        return SpeedRecord(**fields | values)
