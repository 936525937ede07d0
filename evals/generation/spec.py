"""State long generations as a configuration writes them: who writes, from which prompts, how much, how it is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, model_validator

from longdecode.evals import config_values as typed
from longdecode.evals.budgets import Budgets

Source = Literal["pg19", "narrative"]


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """One way of drawing tokens; ``engine.sampling.Sampling`` says what each number does."""

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    penalty: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    penalty_window: typed.Count = 1024
    min_tokens: typed.Count = 1

    @property
    def history_tokens(self) -> int:
        """Tokens before a draw that it depends on."""
        return self.penalty_window if self.penalty > 1 else 0


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """Texts of ``tokens`` tokens that every label writes after the same prompts with the same noise.

    ``prompts`` are lengths in tokens, ``books`` how many prompts there are of each. Full writes first, whatever the
    labels say: the others are compared with it. ``budgets`` stand in for those of the configuration; a fraction is one
    of the prompt, so that ``1.0`` is the paper's. Totals are noted every ``mark`` tokens, and every
    ``keep_every``-th time the whole state goes to disk, where a killed run goes on.

    ``drafters`` are labels that draft for Full, each with every one of ``draft_tokens`` and ``branches``. On
    ``law_positions`` steps of the first TokenSwift label the bias of the printed rule of acceptance is measured.
    """

    model: typed.Text
    prompts: typed.Contexts
    tokens: typed.Length
    samplers: typed.Names
    labels: Annotated[tuple[typed.Text, ...], typed.Distinct] = ()
    drafters: Annotated[tuple[typed.Text, ...], typed.Distinct] = ()
    draft_tokens: typed.Sizes = (4,)
    branches: typed.Sizes = (1,)
    books: typed.Count = 1
    source: Source = "pg19"
    budgets: Budgets | None = None
    mark: typed.Count = 10_240
    keep_every: typed.Count = 1
    law_positions: typed.Whole = 0

    @property
    def named(self) -> tuple[str, ...]:
        """Labels of the configuration that the run needs."""
        return tuple(dict.fromkeys(("full", *self.labels, *self.drafters)))


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Long generations by name, each a job, and the samplers that they name."""

    samplers: Annotated[Mapping[typed.Name, SamplerSpec], Field(min_length=1)]
    runs: Annotated[Mapping[typed.Name, GenerationRun], typed.OrNull()] = field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> GenerationSpec:
        for name, run in self.runs.items():
            typed.require_known("sampler", run.samplers, self.samplers, f"runs.{name}.samplers")
            for sampler in run.samplers:
                window, shortest = self.samplers[sampler].history_tokens, min(run.prompts)
                if window > shortest:
                    raise typed.wrong(
                        f"{shortest} tokens are fewer than the penalty window of {sampler}, {window}; the penalty "
                        "would look at a prompt that is not there",
                        f"runs.{name}.prompts",
                    )
        return self

    def check_names(self, models: Iterable[str], labels: Iterable[str]) -> None:
        """Refuse models and labels that the configuration does not have."""
        models, labels = tuple(models), tuple(labels)
        for name, run in self.runs.items():
            typed.require_known("model", [run.model], models, f"generation.runs.{name}.model")
            typed.require_known("label", run.named, labels, f"generation.runs.{name}.labels")

    def models_of(self, label: str) -> Iterator[str]:
        """Yield the models on which some run needs a label."""
        yield from (run.model for run in self.runs.values() if label in run.named)
