"""The throughput test on real text: the ``throughput.own_choices`` key of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from longdecode.evals import config_values as typed
from longdecode.evals.budgets import Budget

JOB = "own_choices"
WARMUP_BLOCKS = 2
"""Blocks of steps before the first round, which fill the spare slots of a resident set."""
GRAPH_WARMUP_STEPS = 2


@dataclass(frozen=True, slots=True)
class OwnChoicesPlace:
    """A context and the budget there, in tokens; ``labels`` other than ``full`` that are timed, ``None`` for all.

    ``prompts``: read ``whole``, or each by the method's ``own`` rule where that chooses for a prompt's tokens too.
    """

    context: typed.Length
    budget: typed.Count
    prompts: Literal["whole", "own"] = "whole"
    labels: typed.Names | None = None


@dataclass(frozen=True, slots=True)
class OwnChoicesSpec:
    """Checkpoints decode books at equal device memory; every label chooses for itself what it reads.

    ``labels`` maps labels of the run, ``full`` among them, to models of the run, which have one shape. The memory is
    that of ``sequences`` whole sequences at each context. ``host_gib`` is taken once and used by all labels.
    A timed block has ``steps`` steps; a label never goes back, so that it decodes
    ``forced`` tokens of text in all.
    """

    labels: Annotated[Mapping[typed.Name, typed.Text], Field(min_length=1)]
    places: Annotated[tuple[OwnChoicesPlace, ...], Field(min_length=1)]
    sequences: typed.Count = 4
    host_gib: typed.Count = 64
    max_batch: typed.Count = 64
    rounds: typed.Rounds = 3
    steps: typed.Count = 32

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the labels, as every other test names them."""
        return tuple(self.labels)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Return every context once."""
        return tuple(dict.fromkeys(place.context for place in self.places))

    @property
    def model(self) -> str:
        """Return the model that full attention runs on."""
        return self.labels["full"]

    @property
    def tokens(self) -> tuple[Budget, ...]:
        """Return the budgets of every label that takes one."""
        return tuple(Budget(tokens) for tokens in dict.fromkeys(place.budget for place in self.places))

    def timed(self, place: OwnChoicesPlace) -> tuple[str, ...]:
        """Return the labels that are timed at a place, ``full`` left out."""
        return tuple(label for label in self.labels if label != "full" and label in (place.labels or self.labels))

    @property
    def scored(self) -> int:
        """Return the tokens of text that every label decodes: those of its blocks, and the first."""
        return 1 + (WARMUP_BLOCKS + 2 * self.rounds) * self.steps

    @property
    def forced(self) -> int:
        """Return the tokens of text that follow a prompt: those, and one a step that runs before a graph's capture."""
        return self.scored + GRAPH_WARMUP_STEPS

    def check_names(self, labels: Iterable[str], models: Iterable[str]) -> None:
        """Refuse labels and models that the run does not have, as a validator does."""
        typed.require_known("method", self.labels, labels, "throughput.own_choices.labels")
        for label, model in self.labels.items():
            typed.require_known("model", [model], models, f"throughput.own_choices.labels.{label}")

    @model_validator(mode="after")
    def _check(self) -> OwnChoicesSpec:
        if "full" not in self.labels:
            raise typed.wrong("lacks 'full', which every label is timed in pairs with", "labels")
        for number, place in enumerate(self.places):
            typed.require_known("method", place.labels or (), self.labels, f"places.{number}.labels")
            if place.context <= (need := place.budget + self.forced):
                raise typed.wrong(
                    f"{place.context}; more than the budget and {self.forced} tokens to decode are needed ({need})",
                    f"places.{number}.context",
                )
        return self
