"""The gate's second part: which launches a run makes of a label, and whether their kernels are right there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from longdecode.engine.errors import GateError, LongDecodeError, UnsupportedCellError
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.run_config import RunConfig

if TYPE_CHECKING:
    import torch

    from longdecode.engine.model_config import ModelConfig
    from longdecode.methods.conformance_launches import Place

CACHE_BYTES = 6_000_000_000
"""Most that a check's cache takes on a GPU; its definitions take as much again in float32, twice."""
CPU_CONTEXT, CPU_BATCH = 1024, 2


@dataclass(frozen=True, slots=True)
class Launches:
    """The largest launches of a label on one model: context (tokens), rows, budgets, and its portable parameters."""

    context: int
    batch: int
    budgets: tuple[Budget, ...]
    params: Mapping[str, Any]


class Launched(BaseModel):
    """Outcome on one model: what was checked (tokens x rows at a budget), or why nothing was."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Literal["passed", "failed_gate", "skipped"]
    dtype: str
    checked: tuple[str, ...] = ()
    message: str = ""

    @property
    def refusal(self) -> Exception | None:
        """The error that bars the label on this model from a table."""
        return GateError(self.message) if self.status == "failed_gate" else None


def launches_of(run: RunConfig, label: str) -> dict[str, Launches]:
    """Return by model or shape the largest launches of all labels that share a label's gate."""
    method = run.methods[label].method
    sharing = [name for name, spec in run.methods.items() if spec.method == method and run.gate_of(name) == label]
    found: dict[str, Launches] = {}
    for name in sharing:
        for model, context, batch, budgets in (*_scored(run, name), *_timed(run, name)):
            known = found.get(model, Launches(0, 0, (), run.methods[name].portable(model)))
            found[model] = Launches(
                max(known.context, context),
                max(known.batch, batch),
                tuple(dict.fromkeys((*known.budgets, *(b for b in budgets if not b.of_bytes)))),
                known.params,
            )
    return found


def check_label(run: RunConfig, label: str, device: torch.device) -> dict[str, Launched]:
    """Check a label's launches on every model it runs on; nothing is raised."""
    return {model: _check(run, label, model, launches, device) for model, launches in launches_of(run, label).items()}


def _scored(run: RunConfig, label: str) -> Iterator[tuple[str, int, int, tuple[Budget, ...]]]:
    suites = [run.suites[suite] for suite in run.suites_of(label)]
    for model in run.models if suites else ():
        if run.methods[label].runs_on(model):
            context = max(max(suite.contexts) for suite in suites)
            batch = max(min(suite.batch, suite.samples) for suite in suites)
            yield model, context, batch, run.budgets_of(label)


def _timed(run: RunConfig, label: str) -> Iterator[tuple[str, int, int, tuple[Budget, ...]]]:
    takes_budget = run.methods[label].takes_budget
    for model, spec in run.throughput.decode.items() if run.throughput else ():
        places = [(c, b) for c in spec.contexts for b in spec.batches if spec.times(label, c, b)]
        if label in spec.methods and places:
            budgets = spec.budgets_of(label) if takes_budget else (FULL_BUDGET,)
            yield model, max(c for c, _ in places), max(b for _, b in places), budgets
    shared = run.throughput.equal_memory if run.throughput else None
    if shared and takes_budget and label in shared.methods:
        yield shared.model, max(shared.contexts), shared.max_batch, (shared.tokens,)
    elif shared and run.methods[label].method == "full":
        yield shared.model, max(shared.contexts), shared.sequences, (FULL_BUDGET,)
    own = run.throughput.own_choices if run.throughput else None
    if own and label in own.labels:
        rows, budgets = (own.max_batch, own.tokens) if takes_budget else (own.sequences, (FULL_BUDGET,))
        yield own.labels[label], max(own.contexts), rows, budgets


def _check(run: RunConfig, label: str, model: str, launches: Launches, device: torch.device) -> Launched:
    import torch

    from longdecode.engine.device import resolve_dtype
    from longdecode.evals.failures import free_memory
    from longdecode.methods.conformance_launches import check_launches

    dtype, method = resolve_dtype(run.dtype, device), run.methods[label].method
    name, checked = str(dtype).removeprefix("torch."), list[str]()
    problem: Exception | None = None
    try:
        config = _config(run, model, launches.context)
        for place in places(launches, config, device, dtype):
            budget = _budget(launches, place.context)
            check_launches(method, config, launches.params, budget, place, device, dtype, seed=run.seed)
            at = "" if budget is None else f", budget {budget}"
            checked.append(f"{place.context} tokens x {place.batch}{at}")
    except Exception as error:  # whatever a kernel raises at such a size fails it
        problem = error
    free_memory(device, problem)
    said = "" if problem is None else f"on {model}: {type(problem).__name__}: {problem}"
    fits = isinstance(problem, LongDecodeError | torch.cuda.OutOfMemoryError | None)
    status: Literal["passed", "failed_gate", "skipped"] = "passed" if checked else "skipped"
    if isinstance(problem, GateError) or not fits:
        status = "failed_gate"
    return Launched(status=status, dtype=name, checked=tuple(checked), message=said)


def places(launches: Launches, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> list[Place]:
    """Return where launches are checked: the longest context with the rows that fit, all rows at the context that fits.

    Raises:
        UnsupportedCellError: the device has no room for one row of ``CPU_CONTEXT`` tokens.
    """
    import torch

    from longdecode.methods.conformance_launches import Place

    if device.type == "cpu":
        return [Place(min(launches.context, CPU_CONTEXT), min(launches.batch, CPU_BATCH))]
    room = min(CACHE_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    token = Place(1, 1).cache_bytes(config, dtype)
    rows = max(1, min(launches.batch, room // (launches.context * token)))
    longest = Place(min(launches.context, room // token), rows)
    widest = Place(min(launches.context, room // (launches.batch * token)), launches.batch)
    least = min(launches.context, CPU_CONTEXT)
    found = [place for place in dict.fromkeys((longest, widest)) if place.context >= least]
    if not found:
        raise UnsupportedCellError(f"{least} tokens take {least * token:,} bytes, {room:,} may be used on {device}")
    return found


def _config(run: RunConfig, model: str, context: int) -> ModelConfig:
    from longdecode.engine.config_reader import read_config, resolve_checkpoint
    from longdecode.evals.throughput.models import shape_config

    if model not in run.models:
        return shape_config(model, context)
    return read_config(resolve_checkpoint(run.models[model].path, run.models[model].revision))


def _budget(launches: Launches, context: int) -> int | None:
    """Return the largest of the budgets in tokens that leaves something out here; else a tenth of the context."""
    tokens = [budget.tokens(context) for budget in launches.budgets]
    if None in tokens:
        return None
    return max((n for n in tokens if n is not None and n < context), default=context // 10)
