"""State a measurement of what is corrected in retrospect, as a configuration writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from longdecode.evals import config_values as typed
from longdecode.evals.tasks.registry import task_names


@dataclass(frozen=True, slots=True)
class RetrospectionSpec:
    """A measurement of overlapping selections, and of how near corrected states come to Full's.

    ``models`` gives each model the task whose samples it decodes. Every variant decodes the same ``steps`` tokens, at
    each budget of the run: those that the task forces, or Full's own where it forces none. ``variants`` keep every
    token; the first of method ``quest`` is what the others are held against.
    """

    models: Annotated[Mapping[typed.Text, Annotated[typed.Text, typed.known("task", task_names)]], Field(min_length=1)]
    variants: typed.Names
    contexts: typed.Contexts
    steps: typed.Rounds = 256

    def check_names(self, models: Iterable[str], variants: Iterable[str]) -> None:
        """Refuse models and variants that the configuration does not have."""
        typed.require_known("model", self.models, models, "retrospection.models")
        typed.require_known("variant", self.variants, variants, "retrospection.variants")
