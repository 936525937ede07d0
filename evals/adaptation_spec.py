"""Continued training of a run with sparse attention: the ``adaptation`` key of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from longdecode.evals import config_values as typed

_Rate = Annotated[float, Field(strict=True, gt=0, le=1)]


@dataclass(frozen=True, slots=True)
class AdaptationRun:
    """One fork of a dense checkpoint, continued with one kind of attention; ``docs/reproduction-nosa.md`` explains it.

    ``head`` is the form of the importance: ``ed_dma``, ``dma`` (its exponential) or ``s_dma`` (a sigmoid). Importance
    heads learn at ``importance_factor`` times ``lr``. ``lookups`` is the share of look-up documents, the others are
    books. ``budget`` and ``length`` are in tokens.
    """

    name: SkipJsonSchema[typed.Name]
    model: typed.Text
    attention: Literal["full", "infllm2", "nosa", "dma"]
    head: Literal["ed_dma", "dma", "s_dma"] = "ed_dma"
    data: Literal["books", "miniature"] = "books"
    budget: typed.Count = 1024
    length: typed.Length = 4096
    rows: typed.Count = 1
    steps: typed.Count = 300
    lr: _Rate = 2e-4
    importance_factor: Annotated[float, Field(strict=True, ge=1, le=1000)] = 10.0
    scale_init: Annotated[float, Field(strict=True, ge=-1, le=1)] = 0.1
    lookups: typed.Share = 0.5
    rank: typed.Count = 16
    warmup: typed.Count = 20
    seed: typed.Whole = 0
    log_every: typed.Count = 20
    held_out: typed.Count = 4


@dataclass(frozen=True, slots=True)
class LocalitySpec:
    """A measurement of what consecutive steps share: each label on the model named, over forced text.

    ``labels`` maps labels of the run to models of the run; ``slots`` are sizes of a resident set in blocks.
    """

    labels: Annotated[Mapping[typed.Name, typed.Text], Field(min_length=1)]
    context: typed.Length = 4096
    steps: typed.Count = 1024
    samples: typed.Count = 2
    budget: typed.Count = 1024
    slots: typed.Sizes = (64, 80, 96, 128)


@dataclass(frozen=True, slots=True)
class AdaptationSpec:
    """All continued training of a configuration; ``defaults`` are settings that all runs share."""

    defaults: Annotated[Mapping[str, Any], typed.OrNull()] = field(default_factory=dict)
    runs: Annotated[Mapping[typed.Name, AdaptationRun], typed.OrNull()] = field(default_factory=dict)
    locality: LocalitySpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _share_defaults(cls, values: Any) -> Any:
        """Lay each run over the shared settings."""
        return typed.with_defaults(values, AdaptationRun)

    def check_names(self, models: Iterable[str], labels: Iterable[str]) -> None:
        """Refuse models and labels that the run does not have, as a validator does."""
        for name, run in self.runs.items():
            typed.require_known("model", [run.model], models, f"adaptation.runs.{name}.model")
        for label, model in (self.locality.labels if self.locality else {}).items():
            typed.require_known("label", [label], labels, "adaptation.locality.labels")
            typed.require_known("model", [model], models, f"adaptation.locality.labels.{label}")
