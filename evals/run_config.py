"""One run: a YAML file as frozen dataclasses, every name and value in it checked before anything runs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import yaml
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationInfo, model_validator
from pydantic.json_schema import SkipJsonSchema

from longdecode.evals import config_values as typed
from longdecode.evals import specs
from longdecode.evals.budgets import FULL_BUDGET, Budget, Budgets
from longdecode.evals.tasks.registry import SUITES, data_names, folder_of, suite_names
from longdecode.evals.throughput import spec as speed
from longdecode.evals.training_spec import ForkTraining, RoleTraining, TrainingSpec

REFERENCE_METHOD = "full"
"""The method that every difference is taken to."""
JobSize = tuple[str, str, int, int]
"""Name of a suite, of texts or of a bench; model, tokens and rows of a batch."""


@dataclass(frozen=True, slots=True)
class RunConfig(typed.Part):
    """One run, as its configuration file says it; ``source`` names the file."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    profile: Annotated[typed.Name, Field(description="Names results/<profile> and reports/<profile>.")]
    models: Annotated[Mapping[typed.Name, specs.ModelSpec], Field(min_length=1)]
    methods: Annotated[Mapping[typed.Name, specs.MethodSpec], Field(min_length=1)]
    budgets: Budgets
    suites: Annotated[
        Mapping[Annotated[typed.Name, typed.known("suite", suite_names, SUITES.unknown)], specs.SuiteSpec],
        Field(min_length=1), AfterValidator(specs.under_protocols),
    ]  # fmt: skip
    device: Annotated[str, Field(strict=True, pattern="^(auto|cpu|cuda(:[0-9]+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    seed: typed.Whole = 0
    instrument: specs.InstrumentSpec = field(default_factory=specs.InstrumentSpec)
    jobs: Annotated[
        Literal["suite", "context", "cell"],
        Field(description="One job a model and suite, or one more a context, or one more a context and variant."),
    ] = "suite"
    data: Mapping[Annotated[str, typed.known("data set", data_names)], typed.Folder | None] = field(
        default_factory=dict
    )
    throughput: tuple[speed.Grid, ...] = ()
    retrospection: specs.RetrospectionSpec = field(default_factory=specs.NO_RETROSPECTION)
    generation: specs.GenerationSpec = field(default_factory=specs.NO_GENERATION)
    training: Mapping[typed.Name, TrainingSpec] = field(default_factory=dict)
    overlap: Annotated[
        Mapping[typed.Text, typed.Contexts],
        Field(description="Contexts by model at which adjacent layers' top tokens are compared."),
    ] = field(default_factory=dict)
    locality: Annotated[
        Mapping[typed.Text, typed.Names],
        Field(description="Models by variant on which consecutive steps are compared."),
    ] = field(default_factory=dict)
    tuning: specs.TuningSpec = field(default_factory=specs.TuningSpec)
    allow_untuned: typed.Flag = False
    pilot: Annotated[
        typed.Flag, Field(description="Few prompts, nothing tuned: pages say so, and no number enters a verdict.")
    ] = False
    source: SkipJsonSchema[str] = field(default="", metadata=typed.INTERNAL)

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

    @model_validator(mode="after")
    def _fill(self, info: ValidationInfo) -> RunConfig:
        """Give what a part leaves out, and check methods.

        A variant is of the method of its name, a suite that it names stands for each of its protocols (``ruler_prompt``
        for that one), and a grid without variants times all.
        """
        under, methods = defaultdict[str, list[str]](list), dict[str, specs.MethodSpec]()
        for name in self.suites:
            folder, question = folder_of(name)
            under[folder].append(name)
            under[f"{folder}_{question}"] = [name]
        for variant, spec in self.methods.items():
            suites = spec.suites and tuple(name for suite in spec.suites for name in under.get(suite, [suite]))
            methods[variant] = replace(spec, method=spec.method or variant, suites=suites)
            methods[variant].check(f"methods.{variant}", (info.context or {}).get("check_params", True))
        grids = tuple(
            replace(grid, variants=grid.variants or tuple(methods)) if grid.bench in speed.DECODED else grid
            for grid in self.throughput
        )
        return replace(self, methods=methods, throughput=grids)

    def _references(self) -> Iterator[tuple[Any, ...]]:
        """Yield what ``require_known`` takes, of every name of a part of the configuration."""
        shapes, models = tuple(speed.RAW_SHAPES), (*self.models, *speed.RAW_SHAPES)
        for variant, spec in self.methods.items():
            yield "model", spec.by_model, models, f"methods.{variant}.by_model", self.models
            yield "suite of this run", spec.suites or (), self.suites, f"methods.{variant}.suites"
            yield "model", spec.models or (), self.models, f"methods.{variant}.models"
        for number, grid in enumerate(self.throughput):
            timed = {speed.KERNELS: shapes, speed.OWN_CHOICES: tuple(self.models)}.get(grid.bench, models)
            named = dict.fromkeys((grid.model, *grid.timed_on.values()))
            yield "model or shape", named, timed, f"throughput.{number}.model", {*timed} & {*self.models}
            yield "variant", grid.variants, self.methods, f"throughput.{number}.variants"
            yield "variant", grid.hits, grid.variants, f"throughput.{number}.hits"
        yield "model", self.retrospection.models, self.models, "retrospection.models"
        yield "variant", self.retrospection.variants, self.methods, "retrospection.variants"
        for name, text in self.generation.runs.items():
            yield "model", [text.model], self.models, f"generation.runs.{name}.model"
            yield "variant", text.named, self.methods, f"generation.runs.{name}.variants"
        for name, training in self.training.items():
            yield "model", [training.model], self.models, f"training.{name}.model"
        yield "model", self.overlap, self.models, "overlap"
        yield "variant", self.locality, self.methods, "locality"
        yield "model", sum(self.locality.values(), ()), self.models, "locality"
        yield "model", self.tuning.records, self.models, "tuning.records"

    @model_validator(mode="after")
    def _check_names(self) -> RunConfig:
        """Refuse names of models, variants and suites that no other part of the configuration has."""
        for reference in self._references():
            typed.require_known(*reference)
        if specs.TUNING_SUITE in self.suites:
            raise typed.wrong("holds prompts that knobs are tuned on; its scores stand in no table", "suites.tuning")
        if any(map(self.suites_of, self.methods)) and all(s.method != REFERENCE_METHOD for s in self.methods.values()):
            named, full = ", ".join(self.methods), REFERENCE_METHOD
            raise typed.wrong(f"none of {named} is {full!r}, the baseline of all; add `{full}: {{}}`", "methods")
        self._refuse_colliding()
        return self

    def _refuse_colliding(self) -> None:
        """Refuse names that differ only where file names do not: one page would overwrite the other."""
        for key, names in (("models", self.models), ("methods", self.methods), ("suites", self.suites)):
            pages: dict[str, str] = {}
            for name in names:
                if (first := pages.setdefault(re.sub("[^a-z0-9]+", "-", name.lower()).strip("-"), name)) != name:
                    raise typed.wrong(f"{first!r} and {name!r} would have one page; rename one of them", key)


def load_run_config(path: Path | str, *, check_params: bool = True) -> RunConfig:
    """Read and check a configuration file; ``check_params`` as for ``build_run_config``.

    Raises:
        ConfigError: the file is missing or no YAML, or a name or value in it is wrong; the message gives file, key,
            value and the nearest valid name.
    """
    return build_run_config(typed.read_yaml(Path(path)), str(path), check_params=check_params)


def build_run_config(values: Any, source: str, *, check_params: bool = True, check_fairness: bool = False) -> RunConfig:
    """Check a configuration that is already in memory; ``source`` names it in errors.

    Args:
        check_params: check the methods' modules, and parameters against them, which imports torch: seconds that a
            process of a run whose configuration was checked before can do without.
        check_fairness: also refuse a run that compares tuned methods with untuned ones, as a workflow does.

    Raises:
        ConfigError: as for ``load_run_config``.
    """
    run = replace(typed.read(RunConfig, values, source, {"check_params": check_params}), source=source)
    if run.tuning.records or check_fairness:  # other runs do not import this
        from longdecode.evals.fairness import require_fair, with_tuned_values

        run = with_tuned_values(run)
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


class RecordFile(NamedTuple):
    """Identify one file of records; ``context`` is ``None`` where it holds all contexts of the suite."""

    model: str
    variant: str
    suite: str
    context: int | None = None

    def path(self, folder: Path) -> Path:
        """Return the parquet file below the folder of records."""
        part = "" if self.context is None else f".{self.context}"
        return folder / self.model / self.variant / f"{self.suite}{part}.parquet"


RESULT_TABLES = (*map("{}.csv".format, "summary speed comparisons measures pareto ranks orders claims".split()),)
"""Tables that the analysis makes of a run's files; one that a run has no data for has no rows."""


def record_files(run: RunConfig) -> list[RecordFile]:
    """Return every file of records that a run has."""
    return [
        RecordFile(model, variant, suite, context)
        for model, (suite, spec), variant in product(run.models, run.suites.items(), run.methods)
        if suite in run.suites_of(variant)
        for context in (spec.contexts if run.jobs != "suite" else (None,))
    ]


@dataclass(frozen=True, slots=True)
class Launches:
    """The largest launches of a variant on one model, with its portable parameters: tokens, rows, budgets."""

    model: str
    params: Mapping[str, Any]
    context: int = 0
    batch: int = 0
    budgets: tuple[Budget, ...] = ()


def launches_of(run: RunConfig, variant: str) -> list[Launches]:
    """Return the largest launches of a variant, one entry a model."""
    found = dict[str, Launches]()
    for (_, model, context, batch), budgets in sizes_of(run, variant):
        known = found.get(model, Launches(model, run.methods[variant].portable(model)))
        tokens = tuple(dict.fromkeys((*known.budgets, *(b for b in budgets if not b.of_bytes))))
        context, batch = max(known.context, context), max(known.batch, batch)
        found[model] = replace(known, context=context, batch=batch, budgets=tokens)
    return list(found.values())


def sizes_of(run: RunConfig, variant: str) -> Iterator[tuple[JobSize, tuple[Budget, ...]]]:
    """Yield the places at which a run scores, writes and times a variant, with its budgets there."""
    spec, budgets = run.methods[variant], run.budgets_of(variant)
    for model in filter(spec.runs_on, run.models):
        for name in run.suites_of(variant):
            suite = run.suites[name]
            for context in suite.contexts:
                yield (name, model, context, min(suite.batch, suite.samples)), budgets
    for name, texts in run.generation.runs.items():
        if variant in texts.named:
            yield (name, texts.model, max(texts.prompts) + texts.tokens, 1), budgets
    for grid in run.throughput:
        batches = grid.batches
        if grid.bench in (speed.EQUAL_MEMORY, speed.OWN_CHOICES):
            batches = (speed.MAX_BATCH if spec.takes_budget else grid.sequences,)
        timed = grid.budgets if spec.takes_budget else (FULL_BUDGET,)
        for context, batch in product(grid.contexts, batches) if variant in grid.timed_on else ():
            yield (grid.bench, grid.timed_on[variant], context, batch), timed


def budget_at(launches: Launches, context: int) -> int | None:
    """Return the largest of the budgets in tokens that leaves something out here; else a tenth of the context."""
    tokens = [budget.tokens(context) for budget in launches.budgets]
    return None if None in tokens else max((n for n in tokens if n and n < context), default=context // 10)


if __name__ == "__main__":
    print(schema_text(), end="")
