"""One run: a YAML file as frozen dataclasses, every name and value in it checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationInfo, model_validator
from pydantic.json_schema import SkipJsonSchema

from longdecode.engine.errors import ConfigError
from longdecode.evals import config_values as typed
from longdecode.evals.budgets import FULL_BUDGET, Budget, Budgets
from longdecode.evals.fairness import require_fair, with_tuned_values
from longdecode.evals.generation.spec import GenerationSpec
from longdecode.evals.names import colliding, unknown_name
from longdecode.evals.retrospection.spec import RetrospectionSpec
from longdecode.evals.suite_spec import SuiteSpec, with_protocols
from longdecode.evals.tasks.registry import SUITES, data_names, default_tasks, suite_names, suite_tasks, task_names
from longdecode.evals.throughput.shapes import shape_names
from longdecode.evals.throughput.spec import Throughput, with_variants
from longdecode.evals.training_spec import ForkTraining, RoleTraining, TrainingSpec
from longdecode.evals.tuning_spec import TUNING_SUITE, TuningSpec
from longdecode.evals.yaml_file import merged, read_yaml
from longdecode.methods.card import Card
from longdecode.methods.registry import METHODS, get_method, get_rule, load_card

__all__ = [
    "Budget",
    "InstrumentSpec",
    "MethodSpec",
    "ModelSpec",
    "RunConfig",
    "SuiteSpec",
    "build_run_config",
    "load_run_config",
    "schema_text",
]

REFERENCE_METHOD = "full"
"""The method that every difference is taken to."""
TaskName = Annotated[typed.Text, typed.known("task", task_names)]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A checkpoint: a local folder or a hub id, with an optional revision."""

    path: Annotated[typed.Text, Field(description="A local folder or a hub id.")]
    revision: typed.Text | None = None


@dataclass(frozen=True)
class MethodSpec:
    """A variant: a registered method with the parameters that differ from its defaults; tables print its name.

    ``suites`` and ``budgets`` restrict it to a part of the run, as ablations want it; ``None`` runs it everywhere,
    no suite leaves it to the throughput tests alone. ``models`` names the models that it is scored on, ``None`` all:
    a fork of a checkpoint runs what it was trained for. ``by_model`` lays parameters of single models over the others:
    head roles, say, are a model's own. ``tuned`` holds, by model, the values of the run's tuning records, which the
    variant's own parameters override.
    """

    method: Annotated[typed.Text, typed.entry_of(METHODS)] = ""
    params: Annotated[Mapping[str, Any], typed.OrNull()] = field(default_factory=dict)
    suites: Annotated[tuple[str, ...], typed.Distinct] | None = None
    budgets: Budgets | None = None
    models: Annotated[typed.Names, typed.OrNull()] | None = None
    by_model: Annotated[Mapping[str, Mapping[str, Any]], typed.OrNull()] = field(default_factory=dict)
    tuned: SkipJsonSchema[Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    @cached_property
    def card(self) -> Card:
        """The method's card."""
        return load_card(self.method)

    @property
    def takes_budget(self) -> bool:
        """False for a method that reads everything: it runs once a context, not once a budget."""
        return self.card.limits.min_budget_tokens is not None

    @property
    def is_ablation(self) -> bool:
        """True for a variant that runs on a part of the run only, to learn about its method."""
        return bool(self.suites or self.budgets)

    def runs_on(self, model: str) -> bool:
        """Return true where the variant is scored on a model."""
        return self.models is None or model in self.models

    def own_params(self, model: str) -> dict[str, Any]:
        """Return the parameters that the configuration gives on one model."""
        return {**self.params, **self.by_model.get(model, {})}

    def params_of(self, model: str) -> dict[str, Any]:
        """Return the parameters on one model: the configuration's over the tuned ones."""
        return {**self.tuned.get(model, {}), **self.own_params(model)}

    def portable(self, model: str) -> dict[str, Any]:
        """Return the parameters on one model that mean the same on every model, which the gate checks."""
        return self.card.portable(self.params_of(model))

    def files_of(self, model: str) -> tuple[Path, ...]:
        """Return the files that the parameters on one model name."""
        return self.card.files(self.params_of(model))

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> MethodSpec:
        if self.budgets and not self.takes_budget:
            raise typed.wrong(f"{self.method} takes no budget", "budgets")
        if (info.context or {}).get("check_params", True):
            _require_usable(self.method)
            _check_params(self.method, self.params, "params")
            for model, params in self.by_model.items():
                _check_params(self.method, params, f"by_model.{model}")
        return self


@dataclass(frozen=True, slots=True)
class InstrumentSpec:
    """Thresholds of the instrument checks that configurations set; ``evals.instrument`` says what each check asks."""

    full_min: typed.Share = 0.95
    full_min_by_task: Annotated[Mapping[TaskName, typed.Share], typed.OrNull()] = field(default_factory=dict)
    streaming_budget: typed.Share = 0.15


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run, as its configuration file says it; ``source`` names the file."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
    confidence: ClassVar[float] = 0.95
    bootstrap_resamples: ClassVar[int] = 10_000

    profile: Annotated[typed.Name, Field(description="Names results/<profile> and reports/<profile>.")]
    models: Annotated[Mapping[typed.Name, ModelSpec], Field(min_length=1)]
    methods: Annotated[Mapping[typed.Name, Annotated[MethodSpec, typed.OrNull()]], Field(min_length=1)]
    budgets: Budgets
    suites: Annotated[
        Mapping[Annotated[typed.Name, typed.entry_of(SUITES, suite_names)], SuiteSpec], Field(min_length=1)
    ]
    device: Annotated[str, Field(strict=True, pattern="^(auto|cpu|cuda(:[0-9]+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    seed: typed.Whole = 0
    instrument: Annotated[InstrumentSpec, typed.OrNull()] = field(default_factory=InstrumentSpec)
    jobs: Annotated[
        Literal["suite", "context", "cell"],
        Field(description="One job a model and suite, or one more a context, or one more a context and variant."),
    ] = "suite"
    data: Annotated[
        Mapping[Annotated[str, typed.known("data set", data_names)], typed.Folder | None], typed.OrNull()
    ] = field(default_factory=dict)
    throughput: Throughput | None = None
    retrospection: RetrospectionSpec | None = None
    generation: GenerationSpec | None = None
    training: Annotated[Mapping[typed.Name, TrainingSpec], typed.OrNull()] = field(default_factory=dict)
    overlap: Annotated[
        Mapping[typed.Text, typed.Contexts],
        typed.OrNull(),
        Field(description="Contexts by model at which adjacent layers' top tokens are compared."),
    ] = field(default_factory=dict)
    locality: Annotated[
        Mapping[typed.Text, typed.Text],
        typed.OrNull(),
        Field(description="Models by variant on which consecutive steps are compared."),
    ] = field(default_factory=dict)
    tuning: TuningSpec | None = None
    allow_untuned: typed.Flag = False
    pilot: Annotated[
        typed.Flag, Field(description="Few prompts, nothing tuned: pages say so, and no number enters a verdict.")
    ] = False
    source: SkipJsonSchema[str] = ""

    @property
    def role_trainings(self) -> dict[str, RoleTraining]:
        """The trainings of head roles by name, one a seed."""
        return self._trainings(forks=False)

    @property
    def fork_trainings(self) -> dict[str, ForkTraining]:
        """The forks by name, one a seed."""
        return self._trainings(forks=True)

    def _trainings(self, *, forks: bool) -> dict[str, Any]:
        named = [spec.trainings(name) for name, spec in self.training.items() if spec.is_fork == forks]
        return {name: training for trainings in named for name, training in trainings.items()}

    def budgets_of(self, variant: str) -> tuple[Budget, ...]:
        """Return the budgets of a variant: its own or the run's, or ``full`` for a method that reads everything."""
        spec = self.methods[variant]
        return (spec.budgets or self.budgets) if spec.takes_budget else (FULL_BUDGET,)

    def suites_of(self, variant: str) -> tuple[str, ...]:
        """Return the suites that a variant runs on: all of the run's, unless it is restricted."""
        only = self.methods[variant].suites
        return tuple(self.suites) if only is None else only

    def gated_params(self, variant: str) -> list[dict[str, Any]]:
        """Return the sets of parameters that the gate checks for a variant: one a model it runs on, each once."""
        timed = self.throughput.timed_on() if self.throughput else {}
        models = [
            *(m for m in (self.models if self.suites_of(variant) else ()) if self.methods[variant].runs_on(m)),
            *(m for m, variants in timed.items() if variant in variants),
            *(self.generation.models_of(variant) if self.generation else ()),
        ]
        found: list[dict[str, Any]] = []
        for params in map(self.methods[variant].portable, models):
            if params not in found:
                found.append(params)
        return found

    def gate_of(self, variant: str) -> str:
        """Return the first variant whose gate covers this one's: variants often differ in what belongs to one model."""
        method, wanted = self.methods[variant].method, self.gated_params(variant)
        same = (other for other, spec in self.methods.items() if spec.method == method)
        return next(other for other in same if all(params in self.gated_params(other) for params in wanted))

    @model_validator(mode="before")
    @classmethod
    def _name_entries(cls, values: Any) -> Any:
        """Fill in what follows from an entry's name: a variant's method, a suite's tasks, which variants are timed."""
        if not isinstance(values, Mapping):
            return values
        if "source" in values:
            raise typed.wrong(
                unknown_name("key", "source", (item.name for item in fields(cls) if item.name != "source"))
            )
        methods = values.get("methods")
        for variant, entry in methods.items() if isinstance(methods, Mapping) else ():
            if isinstance(entry, Mapping) and "tuned" in entry:
                raise typed.wrong("is written by tuning.records alone", f"methods.{variant}.tuned")
        values = filled = with_protocols(values)
        if isinstance(methods := values.get("methods"), Mapping):
            filled["methods"] = {variant: _over({"method": variant}, entry) for variant, entry in methods.items()}
        if isinstance(suites := values.get("suites"), Mapping):
            filled["suites"] = {
                name: _over({"tasks": list(default_tasks(name))} if name in suite_names() else {}, entry)
                for name, entry in suites.items()
            }
        if "throughput" in values:
            filled["throughput"] = with_variants(values["throughput"], methods if isinstance(methods, Mapping) else ())
        return filled

    @model_validator(mode="after")
    def _check_names(self) -> RunConfig:
        """Refuse names of models, variants, suites and tasks that no other part of the configuration has."""
        models = (*self.models, *shape_names())
        for variant, spec in self.methods.items():
            typed.require_known("model", spec.by_model, models, f"methods.{variant}.by_model")
            typed.require_known("suite of this run", spec.suites or (), self.suites, f"methods.{variant}.suites")
            typed.require_known("model", spec.models or (), self.models, f"methods.{variant}.models")
        for name, suite in self.suites.items():
            typed.require_known(f"task of {name}", suite.tasks, suite_tasks(name), f"suites.{name}.tasks")
        if self.throughput is not None:
            self.throughput.check_names(self.methods, self.models)
        if self.retrospection is not None:
            self.retrospection.check_names(self.models, self.methods)
        if self.generation is not None:
            self.generation.check_names(self.models, self.methods)
        for name, training in self.training.items():
            typed.require_known("model", [training.model], self.models, f"training.{name}.model")
        typed.require_known("model", self.overlap, self.models, "overlap")
        typed.require_known("variant", self.locality, self.methods, "locality")
        typed.require_known("model", self.locality.values(), self.models, "locality")
        if TUNING_SUITE in self.suites:
            raise typed.wrong(
                "holds the prompts that knobs are tuned on; its scores stand in no table", "suites.tuning"
            )
        if self.tuning is not None:
            typed.require_known("model", self.tuning.records, self.models, "tuning.records")
        if any(map(self.suites_of, self.methods)) and all(s.method != REFERENCE_METHOD for s in self.methods.values()):
            raise typed.wrong(
                f"none of {', '.join(self.methods)} is {REFERENCE_METHOD!r}, the baseline of every difference; add "
                f"`{REFERENCE_METHOD}: {{}}`",
                "methods",
            )
        self._refuse_colliding()
        return self

    def _refuse_colliding(self) -> None:
        """Refuse names that differ only where file names do not: one page would overwrite the other."""
        for key, names in (("models", self.models), ("methods", self.methods), ("suites", self.suites)):
            if pair := colliding(names):
                raise typed.wrong(f"{pair[0]!r} and {pair[1]!r} would have one page; rename one of them", key)


def load_run_config(path: Path | str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read and check a configuration file.

    Args:
        path: the YAML file.
        overrides: values laid over the file's, mappings key by key (the command line's ``--config``).

    Raises:
        ConfigError: the file is missing or no YAML, or a name or value in it is wrong; the message gives file, key,
            value and the nearest valid name.
    """
    values = read_yaml(Path(path))
    return build_run_config(merged(values, overrides) if overrides else values, str(path))


def build_run_config(values: Any, source: str, *, check_params: bool = True, check_fairness: bool = False) -> RunConfig:
    """Check a configuration that is already in memory; ``source`` names it in errors.

    Args:
        check_params: check the methods' modules, and parameters against them, which imports torch: seconds that a
            process of a run whose configuration was checked before can do without.
        check_fairness: also refuse a run that compares tuned methods with untuned ones, as a workflow does.

    Raises:
        ConfigError: as for ``load_run_config``.
    """
    run = typed.read(RunConfig, values, source, {"check_params": check_params})
    run = with_tuned_values(replace(run, source=source))
    if check_fairness:
        require_fair(run)
    return run


def granted(run: RunConfig, gpus: int) -> RunConfig:
    """Return the run as a job has it: ``auto`` is CUDA where the job asked for a GPU, the CPU where it did not.

    A node that gives a job no GPU then refuses it, instead of computing on its processors for days.
    """
    return replace(run, device="cuda" if gpus else "cpu") if run.device == "auto" else run


def schema_text() -> str:
    """Return the JSON schema of a configuration file, as ``workflow/schemas/config.schema.yaml`` has it."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A configuration of LongDecode; `make schema` writes this file from evals/run_config.py.",
    }
    schema = head | TypeAdapter(RunConfig).json_schema()
    return yaml.safe_dump(schema, sort_keys=False, default_flow_style=None, width=120)


def _require_usable(method: str) -> None:
    """Import a method and its rule, which jobs would find wanting only after others had run."""
    for file, load in (("method.py", get_method), ("rule.py", get_rule)):
        try:
            load(method)
        except ConfigError as error:
            raise typed.wrong(str(error)) from None
        except Exception as error:  # a file of the user's may raise anything
            path = METHODS.find(method) / file
            raise typed.wrong(f"{path}: cannot be imported: {type(error).__name__}: {error}") from None


def _check_params(method: str, params: Mapping[str, Any], key: str) -> None:
    if not params:
        return
    # A method's module brings torch with it: seconds that a process which checks nothing should not spend.
    from longdecode.methods.budgeted import build_params

    params_type = get_method(method).Params
    for name in params:
        typed.require_known(
            f"parameter of {method}", [name], [item.name for item in fields(params_type)], f"{key}.{name}"
        )
    try:
        build_params(method, params_type, params)
    except ConfigError as error:
        raise typed.wrong(str(error), key) from None


def _over(implied: Mapping[str, Any], entry: Any) -> Any:
    """Lay an entry over the values that its name implies; a null leaves them as they are."""
    if not isinstance(entry, Mapping | None):
        return entry
    return {
        **implied,
        **{key: value for key, value in (entry or {}).items() if value is not None or key not in implied},
    }


if __name__ == "__main__":
    print(schema_text(), end="")
