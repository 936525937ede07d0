"""Settings that results depend on: stamped into each file, and compared before its numbers are used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from longdecode.evals.run_config import RunConfig, SuiteSpec
from longdecode.evals.tasks.registry import get_suite


def quality_settings(run: RunConfig, model: str, suite: str, label: str) -> dict[str, Any]:
    """Return all settings that the records of a label on a model and suite depend on, and no others."""
    return _plain(
        _common(run)
        | {
            "data": {name: run.data[name] for name in get_suite(suite).data if name in run.data},
            "model": asdict(run.models[model]),
            "method": run.methods[label].method,
            "params": run.methods[label].params_of(model),
            "budgets": [budget.text for budget in run.budgets_of(label)],
            "suite": {"name": suite, **_suite(run.suites[suite])},
        }
    )


def speed_settings(run: RunConfig, job: str) -> dict[str, Any]:
    """Return all settings that the records of a throughput job depend on, and no others."""
    throughput = run.throughput
    part = None if throughput is None else throughput.part(job)
    model = job if throughput is None else throughput.model_of(job)
    known = {label: run.methods[label] for label in getattr(part, "methods", ()) if label in run.methods}
    methods = {label: [spec.method, spec.params_of(model)] for label, spec in known.items()}
    return _plain(_common(run) | {"job": repr(part), "methods": methods})


def narrowed(run: RunConfig, suite: str, context: int | None) -> RunConfig:
    """Return the run as a job of one context sees it; ``None`` leaves it whole."""
    if context is None:
        return run
    return replace(run, suites={**run.suites, suite: replace(run.suites[suite], contexts=(context,))})


def _suite(spec: SuiteSpec) -> dict[str, Any]:
    """Return a suite's settings; names of suite and tasks say the protocol."""
    return {name: value for name, value in asdict(spec).items() if name != "question"}


def _common(run: RunConfig) -> dict[str, Any]:
    return {"profile": run.profile, "dtype": run.dtype, "seed": run.seed}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON gives them back."""
    return dict(json.loads(json.dumps(settings, default=str)))
