"""Parts of a configuration: models, variants, suites, tuning, long generations, corrections in retrospect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator
from pydantic.json_schema import SkipJsonSchema

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.errors import ConfigError
from longdecode.evals import config_values as typed
from longdecode.evals.budgets import Budgets
from longdecode.evals.tasks.base import Question
from longdecode.evals.tasks.registry import default_tasks, folder_of, name_under, suite_tasks, task_names
from longdecode.methods.card import Card
from longdecode.methods.registry import METHODS, get_method, get_rule, load_card

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod
    from longdecode.engine.model_config import ModelConfig

TaskName = Annotated[typed.Text, typed.known("task", task_names)]
TUNING_SUITE = "tuning"
TuningTask = Annotated[typed.Text, typed.known("tuning task", lambda: suite_tasks(TUNING_SUITE))]
SamplerKey = Literal["temperature", "top_p", "min_p", "eta", "penalty", "penalty_window", "min_tokens"]
_Questions = Annotated[tuple[Question, ...], typed.SOME]
Protocols = Annotated[
    _Questions, typed.Distinct,
    BeforeValidator(lambda one: [one] if isinstance(one, str) else one, json_schema_input_type=Question | _Questions),
]  # fmt: skip
"""One place of the question or several."""


@dataclass(frozen=True, slots=True)
class ModelSpec(typed.Part):
    """A checkpoint: a local folder or a hub id, with an optional revision."""

    path: Annotated[typed.Text, Field(description="A local folder or a hub id.")]
    revision: typed.Text | None = None

    def checkpoint(self) -> Path:
        """Return the local folder; raises as ``resolve_checkpoint``, and downloads where that does."""
        return resolve_checkpoint(self.path, self.revision)


@dataclass(frozen=True)
class MethodSpec(typed.Part):
    """A variant: a registered method with the parameters that differ from its defaults; tables print its name.

    ``suites`` and ``budgets`` restrict it to a part of the run, as ablations want it; ``None`` runs it everywhere,
    no suite leaves it to the throughput tests alone. ``models`` names the models that it is scored on, ``None`` all:
    a fork of a checkpoint runs what it was trained for. ``by_model`` lays parameters of single models over the others:
    head roles, say, are a model's own. ``tuned`` holds, by model, the values of the run's tuning records, which the
    variant's own parameters override.
    """

    method: typed.Text = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    suites: Annotated[tuple[str, ...], typed.Distinct] | None = None
    budgets: Budgets | None = None
    models: typed.Names | None = None
    by_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned: SkipJsonSchema[Mapping[str, Mapping[str, Any]]] = field(default_factory=dict, metadata=typed.INTERNAL)

    @cached_property
    def card(self) -> Card:
        """The method's card."""
        return load_card(self.method)

    @property
    def takes_budget(self) -> bool:
        """False for a method that reads everything: it runs once a context, not once a budget."""
        return self.card.limits.min_budget_tokens is not None

    def runs_on(self, model: str) -> bool:
        """Return true where the variant is scored on a model."""
        return self.models is None or model in self.models

    def own_params(self, model: str) -> dict[str, Any]:
        """Return the parameters that the configuration gives on one model."""
        return {**self.params, **self.by_model.get(model, {})}

    def params_of(self, model: str) -> dict[str, Any]:
        """Return the parameters on one model: the configuration's over the tuned ones."""
        return {**self.tuned.get(model, {}), **self.own_params(model)}

    def build(self, budget_tokens: int | None, config: ModelConfig, model: str) -> AttentionMethod:
        """Build the method at a budget on one model.

        Raises:
            UnsupportedCellError: it cannot honour the budget there.
        """
        return get_method(self.method).from_budget(budget_tokens, config, **self.params_of(model))

    def portable(self, model: str) -> dict[str, Any]:
        """Return the parameters on one model that mean the same on every model, which the gate checks."""
        return self.card.portable(self.params_of(model))

    def files_of(self, model: str) -> tuple[Path, ...]:
        """Return the files that the parameters on one model name."""
        return self.card.files(self.params_of(model))

    def check(self, key: str, deep: bool) -> None:
        """Refuse a method that there is not, and budgets and parameters that it does not take, as validators do.

        Args:
            key: the variant's in the configuration.
            deep: import the method and check its parameters.
        """
        if self.method not in METHODS.folders():
            raise typed.wrong(METHODS.unknown(self.method), f"{key}.method")
        if self.budgets and not self.takes_budget:
            raise typed.wrong(f"{self.method} takes no budget", f"{key}.budgets")
        if deep:
            self._check_code(key)

    def _check_code(self, key: str) -> None:
        """Import the method and its rule, which jobs would find wanting only after others had run; check parameters."""
        # A method's module brings torch with it: seconds that a process which checks nothing should not spend.
        from longdecode.methods.budgeted import build_params

        at, of_models = key, {f"{key}.by_model.{model}": params for model, params in self.by_model.items()}
        try:
            get_rule(self.method)
            params_type = get_method(self.method).Params
            for at, params in {f"{key}.params": self.params, **of_models}.items():  # noqa: B007
                build_params(self.method, params_type, params)
        except ConfigError as error:
            raise typed.wrong(str(error), at) from None


@dataclass(frozen=True, slots=True)
class InstrumentSpec(typed.Part):
    """Thresholds of the instrument checks that configurations set; ``evals.instrument`` says what each check asks."""

    full_min: typed.Share = 0.95
    full_min_by_task: Mapping[TaskName, typed.Share] = field(default_factory=dict)
    streaming_budget: typed.Share = 0.15


@dataclass(frozen=True, slots=True)
class SuiteSpec(typed.Part):
    """The part of a suite that runs: contexts (tokens), samples of each task, samples decoded at once, tasks.

    ``refill`` puts the next sample in the place of one whose answer has ended. ``question`` is where the question
    stands, or several of it: each is a suite of its own in the run (``under_protocols``); left out, the suite's own.
    No tasks are the suite's default ones.
    """

    contexts: typed.Sizes
    samples: typed.Count
    batch: typed.Count = 1
    tasks: typed.Names = ()
    refill: typed.Flag = False
    question: Protocols | None = None


def under_protocols(suites: Mapping[str, SuiteSpec]) -> dict[str, SuiteSpec]:
    """Return the suites of a file under each of their protocols, with their tasks.

    ``longbench: {question: [decoded, prompt]}`` becomes ``longbench`` and ``longbench_prompt``.
    """
    found = {}
    for suite, spec in suites.items():
        folder, own = folder_of(suite)
        if folder != suite:
            raise typed.wrong(f"is the suite {folder} with `question: {own}`; write that", suite)
        typed.require_known(f"task of {suite}", spec.tasks, suite_tasks(suite), f"{suite}.tasks")
        for question in spec.question or (own,):
            try:
                name = name_under(suite, question)
            except ConfigError as error:
                raise typed.wrong(str(error), f"{suite}.question") from None
            tasks = spec.tasks if name == suite else [f"{task}_{question}" for task in spec.tasks]
            found[name] = replace(spec, tasks=tuple(tasks) or default_tasks(name))
    return found


@dataclass(frozen=True, slots=True)
class TuningSpec(typed.Part):
    """Effort and prompts of tuning, alike for every method, and by model the record whose values the run takes.

    ``settings`` is the most settings that are tried for a method: its knobs are swept one after the other. A task that
    Full solves less of than ``full_min`` chooses nothing.
    """

    records: Mapping[typed.Name, Annotated[typed.Text, Field(description="The model's tuning record.")]] = field(
        default_factory=dict
    )
    settings: ClassVar[int] = 12
    seed: ClassVar[int] = 1_000_003
    full_min: ClassVar[float] = 0.3

    samples: typed.Count = 16
    contexts: typed.Sizes = (1536,)
    tasks: Annotated[tuple[TuningTask, ...], typed.Distinct] = ()
    budget: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.1


@dataclass(frozen=True, slots=True)
class GenerationRun(typed.Part):
    """Texts of ``tokens`` tokens that every variant writes after the same prompts with the same noise.

    ``prompts`` are lengths in tokens, ``books`` how many prompts there are of each, and
    ``instructions`` how many more ask in a chat to go on with a book. Full writes first, whatever the
    variants say: the others are compared with it. A variant's budget in fractions is one of the prompt.
    Texts that are not ``timed`` share a GPU with other jobs and have no times; Full writes only where it is named.
    """

    model: typed.Text
    prompts: typed.Contexts
    tokens: typed.Length
    samplers: typed.Names
    variants: Annotated[tuple[typed.Text, ...], typed.Distinct] = ()
    books: typed.Count = 1
    instructions: typed.Whole = 0
    timed: bool = True

    @property
    def named(self) -> tuple[str, ...]:
        """Variants of the configuration that the run needs."""
        return tuple(dict.fromkeys((*["full"] * self.timed, *self.variants)))


@dataclass(frozen=True, slots=True)
class GenerationSpec(typed.Part):
    """Long generations by name, each a job, and the samplers that they name: values of ``engine.sampling.Sampling``."""

    samplers: Annotated[Mapping[typed.Name, Mapping[SamplerKey, int | float]], Field(min_length=1)]
    runs: Mapping[typed.Name, GenerationRun] = field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> GenerationSpec:
        for name, run in self.runs.items():
            typed.require_known("sampler", run.samplers, self.samplers, f"runs.{name}.samplers")
        for name in self.samplers if (info.context or {}).get("check_params", True) else ():
            try:
                self.sampling(name)
            except (ConfigError, OverflowError) as error:
                raise typed.wrong(str(error), f"samplers.{name}") from None
        return self

    def sampling(self, name: str) -> Any:
        """Return a sampler by name, as ``engine.sampling`` has it."""
        from longdecode.engine.sampling import Sampling  # torch comes with it

        return Sampling(**dict[str, Any](self.samplers[name].items()))


@dataclass(frozen=True, slots=True)
class RetrospectionSpec(typed.Part):
    """A measurement of overlapping selections, and of how near corrected states come to Full's.

    ``models`` gives each model the task whose samples it decodes. Every variant decodes the same ``steps`` tokens, at
    each budget of the run: those that the task forces, or Full's own where it forces none. ``variants`` keep every
    token; the first of method ``quest`` is what the others are held against.
    """

    models: Annotated[Mapping[typed.Text, TaskName], Field(min_length=1)]
    variants: typed.Names
    contexts: typed.Contexts
    steps: typed.Rounds = 256


NO_GENERATION, NO_RETROSPECTION = partial(GenerationSpec, {}), partial(RetrospectionSpec, {}, (), ())
"""Make the parts of a configuration that asks for neither."""
