"""State long generations as a configuration writes them: who writes, from which prompts, how much, how it is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from longdecode.engine.errors import ConfigError
from longdecode.evals import config_values as typed

SamplerKey = Literal["temperature", "top_p", "min_p", "eta", "penalty", "penalty_window", "min_tokens"]


@dataclass(frozen=True, slots=True)
class GenerationRun:
    """Texts of ``tokens`` tokens that every variant writes after the same prompts with the same noise.

    ``prompts`` are lengths in tokens, ``books`` how many prompts there are of each. Full writes first, whatever the
    variants say: the others are compared with it. A variant's budget in fractions is one of the prompt.
    """

    model: typed.Text
    prompts: typed.Contexts
    tokens: typed.Length
    samplers: typed.Names
    variants: Annotated[tuple[typed.Text, ...], typed.Distinct] = ()
    books: typed.Count = 1

    @property
    def named(self) -> tuple[str, ...]:
        """Variants of the configuration that the run needs."""
        return tuple(dict.fromkeys(("full", *self.variants)))


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Long generations by name, each a job, and the samplers that they name: values of ``engine.sampling.Sampling``."""

    samplers: Annotated[Mapping[typed.Name, Mapping[SamplerKey, int | float]], Field(min_length=1)]
    runs: Annotated[Mapping[typed.Name, GenerationRun], typed.OrNull()] = field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> GenerationSpec:
        for name, run in self.runs.items():
            typed.require_known("sampler", run.samplers, self.samplers, f"runs.{name}.samplers")
        for name in self.samplers if (info.context or {}).get("check_params", True) else ():
            try:
                self.sampling(name)
            except ConfigError as error:
                raise typed.wrong(str(error), f"samplers.{name}") from None
        return self

    def sampling(self, name: str) -> Any:
        """Return a sampler by name, as ``engine.sampling`` has it."""
        from longdecode.engine.sampling import Sampling  # torch comes with it

        return Sampling(**dict[str, Any](self.samplers[name].items()))

    def check_names(self, models: Iterable[str], variants: Iterable[str]) -> None:
        """Refuse models and variants that the configuration does not have."""
        models, variants = tuple(models), tuple(variants)
        for name, run in self.runs.items():
            typed.require_known("model", [run.model], models, f"generation.runs.{name}.model")
            typed.require_known("variant", run.named, variants, f"generation.runs.{name}.variants")

    def models_of(self, variant: str) -> Iterator[str]:
        """Yield the models on which some run needs a variant."""
        yield from (run.model for run in self.runs.values() if variant in run.named)
