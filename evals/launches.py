"""The largest launches that a run makes of a variant: what the gate checks, and what a plan depends on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.spec import EQUAL_MEMORY, MAX_BATCH, OWN_CHOICES


@dataclass(frozen=True, slots=True)
class Launches:
    """The largest launches of a method on one model under one set of portable parameters: tokens, rows, budgets."""

    model: str
    params: Mapping[str, Any]
    context: int = 0
    batch: int = 0
    budgets: tuple[Budget, ...] = ()


def launches_of(run: RunConfig, variant: str) -> list[Launches]:
    """Return the largest launches of all variants that share a variant's gate, by model and parameters."""
    method, found = run.methods[variant].method, dict[str, Launches]()
    sharing = [name for name, spec in run.methods.items() if spec.method == method and run.gate_of(name) == variant]
    for name in sharing:
        for model, context, batch, budgets in _sizes(run, name):
            params = run.methods[name].portable(model)
            key = json.dumps([model, params], sort_keys=True, default=str)
            known = found.get(key, Launches(model, params))
            tokens = tuple(dict.fromkeys((*known.budgets, *(b for b in budgets if not b.of_bytes))))
            found[key] = Launches(model, params, max(known.context, context), max(known.batch, batch), tokens)
    return list(found.values())


def _sizes(run: RunConfig, variant: str) -> Iterator[tuple[str, int, int, tuple[Budget, ...]]]:
    """Yield model, tokens, rows and budgets of what a run scores, writes and times of a variant."""
    spec, budgets = run.methods[variant], run.budgets_of(variant)
    suites = [run.suites[suite] for suite in run.suites_of(variant)]
    for model in filter(spec.runs_on, run.models if suites else ()):
        context = max(max(suite.contexts) for suite in suites)
        yield model, context, max(min(suite.batch, suite.samples) for suite in suites), budgets
    for texts in run.generation.runs.values() if run.generation else ():
        if variant in texts.named:
            yield texts.model, max(texts.prompts) + texts.tokens, 1, budgets
    for grid in run.throughput.grids if run.throughput else ():
        if variant in grid.timed_on and grid.contexts:
            batch = max(grid.batches)
            if grid.bench in (EQUAL_MEMORY, OWN_CHOICES):
                batch = MAX_BATCH if spec.takes_budget else grid.sequences
            timed = grid.budgets if spec.takes_budget else (FULL_BUDGET,)
            yield grid.timed_on[variant], max(grid.contexts), batch, timed


def model_shape(run: RunConfig, launches: Launches) -> Any:
    """Return the shape of a model of the run, or of one that is only timed."""
    from longdecode.engine.config_reader import read_config, resolve_checkpoint
    from longdecode.evals.throughput.models import shape_config

    model = run.models.get(launches.model)
    known = read_config(resolve_checkpoint(model.path, model.revision)) if model else None
    return known or shape_config(launches.model, launches.context)


def budget_at(launches: Launches, context: int) -> int | None:
    """Return the largest of the budgets in tokens that leaves something out here; else a tenth of the context."""
    tokens = [budget.tokens(context) for budget in launches.budgets]
    return None if None in tokens else max((n for n in tokens if n and n < context), default=context // 10)
