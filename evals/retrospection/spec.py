"""State a measurement of what is corrected in retrospect, as a configuration writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import model_validator

from longdecode.evals import config_values as typed
from longdecode.evals.budgets import Budgets
from longdecode.evals.tasks.registry import task_names


@dataclass(frozen=True, slots=True)
class RetrospectionSpec:
    """A measurement of overlapping selections, and of how near corrected states come to Full's.

    Every label decodes the same ``steps`` tokens: those that the task forces, or Full's own where it forces none.
    ``tasks`` gives single models a task of their own in the place of ``task``.
    ``labels`` are labels of the run that keep every token; the first of method ``quest`` is what the others are held
    against. ``lags`` is the largest distance in steps between two selections.
    """

    models: typed.Names
    labels: typed.Names
    contexts: typed.Contexts
    budgets: Budgets
    task: Annotated[typed.Text, typed.known("task", task_names)] = "mini_longgen_45"
    tasks: Annotated[Mapping[str, Annotated[typed.Text, typed.known("task", task_names)]], typed.OrNull()] = field(
        default_factory=dict
    )
    samples: typed.Rounds = 4
    steps: typed.Rounds = 64
    lags: typed.Count = 15

    @model_validator(mode="after")
    def _check(self) -> RetrospectionSpec:
        if self.lags >= self.steps:
            raise typed.wrong(f"is {self.lags}; fewer than the {self.steps} steps are needed", "lags")
        return self

    def task_of(self, model: str) -> str:
        """Return the task whose samples a model decodes."""
        return self.tasks.get(model, self.task)

    def check_names(self, models: Iterable[str], labels: Iterable[str]) -> None:
        """Refuse models and labels that the configuration does not have."""
        typed.require_known("model", self.models, models, "retrospection.models")
        typed.require_known("model", self.tasks, self.models, "retrospection.tasks")
        typed.require_known("label", self.labels, labels, "retrospection.labels")
