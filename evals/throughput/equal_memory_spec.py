"""The throughput test at equal device memory: the ``throughput.equal_memory`` key of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field, model_validator

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals import config_values as typed
from longdecode.evals.budgets import Budget
from longdecode.evals.throughput.shapes import shape_names

JOB = "equal_memory"
Part = Literal["resident", "refetch", "eager", "transfer"]
"""Stages that show what a piece of the engine brings, see ``driven``."""
Rate = Annotated[float, Field(strict=True, gt=0, le=1)]


@dataclass(frozen=True, slots=True)
class EqualMemorySpec:
    """Full attention and other labels, each with as many sequences as one memory for keys and values holds.

    The memory is that of ``sequences`` whole sequences at each context. ``host_gib`` is taken once and used by all
    labels. ``hits``: by label, the share of a list that the step before listed (of ShadowKV the share of its chosen
    chunks): one number, one by layer, or a label of ``locality``, a ``locality.csv`` that was measured on real text. A
    list of another length is spread over the model's layers. The path of a recorded trace (``.npz``) stands for its own
    selections. A label that is not named there selects for itself.
    ``sweep``: hit rates that ``sweep_label`` is timed at besides. ``parts``: labels whose pieces are timed one by one.
    Both at ``parts_context``. ``recall``: of labels that prefetch, the share of new blocks that the guess names.
    """

    model: Annotated[typed.Text, typed.known("shape", shape_names)]
    contexts: typed.Contexts
    methods: typed.Names
    budget: Annotated[int, Field(strict=True, ge=1)] = 4096
    sequences: typed.Count = 4
    host_gib: typed.Count = 64
    max_batch: typed.Count = 64
    hits: Annotated[Mapping[str, Rate | tuple[Rate, ...] | str], typed.OrNull()] = field(default_factory=dict)
    locality: typed.Folder | None = None
    sweep: Annotated[tuple[Rate, ...], typed.OrNull(tuple)] = ()
    sweep_label: str = ""
    parts: Annotated[tuple[str, ...], typed.OrNull(tuple)] = ()
    parts_context: typed.Whole = 0
    recall: Rate = 0.9
    rounds: typed.Rounds = 3
    steps: typed.Count = 64

    @property
    def tokens(self) -> Budget:
        """Return the budget of every label that takes one."""
        return Budget(self.budget)

    def trace(self, label: str) -> Path | None:
        """Return the recorded trace that a label replays, if any."""
        given = self.hits.get(label)
        return Path(given) if isinstance(given, str) and given.endswith(".npz") else None

    def rates(self, label: str, layers: int) -> tuple[float, ...] | None:
        """Return a label's hit rate of each layer; ``None`` where it selects for itself.

        Raises:
            DataUnavailableError: the rates were measured and the file does not have them.
        """
        given = self.hits.get(label) if self.trace(label) is None else None
        if given is None or isinstance(given, float):
            return None if given is None else (given,) * layers
        rates = self._measured(given) if isinstance(given, str) else given
        return tuple(rates[layer * len(rates) // layers] for layer in range(layers))

    def _measured(self, label: str) -> tuple[float, ...]:
        """Return the mean overlap of consecutive steps of each layer, at the longest context that was measured."""
        path = self.locality
        if path is None or not path.is_file():
            raise DataUnavailableError(
                f"no measured hit rates at {path}; `snakemake nosa_locality --config profile=nosa` makes them"
            )
        table = pd.read_csv(path)
        rows = table[table["label"] == label]
        if rows.empty:
            raise DataUnavailableError(f"{path} has no label {label!r}, only {', '.join(sorted(set(table['label'])))}")
        rows = rows[rows["context"] == rows["context"].max()]
        return tuple(round(float(rate), 4) for rate in rows.groupby("layer")["gamma"].mean())

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        """Let parts and sweep be at the longest context unless another is named."""
        if isinstance(values, Mapping) and values.get("parts_context") is None and values.get("contexts"):
            return {**values, "parts_context": max(values["contexts"], default=0)}
        return values

    @model_validator(mode="after")
    def _check(self) -> EqualMemorySpec:
        labels = (*self.parts, *self.hits, *((self.sweep_label,) if self.sweep else ()))
        typed.require_known("method", labels, self.methods, "parts, hits or sweep_label")
        if self.parts_context not in self.contexts:
            raise typed.wrong(f"{self.parts_context}: nothing is timed there", "parts_context")
        if min(self.contexts) <= self.budget + self.steps:
            raise typed.wrong(f"{min(self.contexts)} in the list; more than budget and steps are needed", "contexts")
        if self.sweep and self.sweep_label not in self.hits:
            raise typed.wrong(f"{self.sweep_label!r} has no hit rate in hits", "sweep_label")
        return self
