"""What to run: a YAML file turned into frozen dataclasses, every name in it checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from longdecode.engine.errors import ConfigError
from longdecode.evals.budgets import FULL_BUDGET, Budget, read_budgets
from longdecode.evals.config_values import Section
from longdecode.evals.names import unknown_name
from longdecode.evals.tasks.registry import default_tasks, suite_names, suite_tasks, task_names
from longdecode.evals.throughput.shapes import shape_names
from longdecode.evals.throughput.spec import ThroughputSpec, read_throughput
from longdecode.methods.registry import get_method, load_card, method_names

__all__ = [
    "Budget",
    "InstrumentSpec",
    "MethodSpec",
    "ModelSpec",
    "RunConfig",
    "SuiteSpec",
    "build_run_config",
    "load_run_config",
]

DATA_SETS = ("pg19", "prose", "longbench", "ruler", "math", "hotpotqa")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A checkpoint: a local folder or a hub id, with an optional revision."""

    path: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A registered method under the label that tables print, with the parameters that differ from its defaults.

    ``takes_budget`` is false for methods that read everything: they run once a context, not once a budget. ``suites``
    and ``budgets`` restrict a label to a part of the run, as ablations want it; ``None`` runs it everywhere, no suite
    leaves it to the throughput tests alone.
    ``by_model`` lays parameters of single models over the others: head roles, say, are a model's own.
    """

    method: str
    params: Mapping[str, Any]
    takes_budget: bool
    suites: tuple[str, ...] | None = None
    budgets: tuple[Budget, ...] | None = None
    by_model: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def params_of(self, model: str) -> dict[str, Any]:
        """The parameters on one model."""
        return {**self.params, **self.by_model.get(model, {})}

    def files_of(self, model: str) -> tuple[Path, ...]:
        """The files that the parameters on one model name."""
        return load_card(self.method).files(self.params_of(model))


@dataclass(frozen=True, slots=True)
class SuiteSpec:
    """Which tasks of a suite run, at which contexts (tokens), how many samples each, how many at once."""

    contexts: tuple[int, ...]
    samples: int
    batch: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstrumentSpec:
    """Thresholds and budgets of the instrument checks; see ``evals.instrument`` for what each check says."""

    full_label: str = "full"
    full_min: float = 0.95
    full_min_by_task: Mapping[str, float] = field(default_factory=dict)
    streaming_label: str = "streaming"
    streaming_budget: float = 0.15
    streaming_max: float = 0.15
    quest_label: str = "quest"
    rise_tolerance: float = 0.02
    fall_budget_max: float = 0.05
    fall_task: str = "mini_longgen_45"
    loss_task: str = "mini_book_loss"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run, as its configuration file says it."""

    source: str
    profile: str
    device: str
    dtype: str
    seed: int
    models: Mapping[str, ModelSpec]
    methods: Mapping[str, MethodSpec]
    budgets: tuple[Budget, ...]
    suites: Mapping[str, SuiteSpec]
    instrument: InstrumentSpec
    confidence: float
    bootstrap_resamples: int
    data: Mapping[str, Path | None]
    throughput: ThroughputSpec | None = None

    def budgets_of(self, label: str) -> tuple[Budget, ...]:
        """The budgets this label runs at: its own or the run's, or ``full`` for a method that reads everything."""
        spec = self.methods[label]
        return (spec.budgets or self.budgets) if spec.takes_budget else (FULL_BUDGET,)

    def suites_of(self, label: str) -> tuple[str, ...]:
        """The suites this label runs on: all of the run's, unless it is restricted."""
        only = self.methods[label].suites
        return tuple(self.suites) if only is None else only


def load_run_config(path: Path | str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read and check a configuration file.

    Args:
        path: the YAML file.
        overrides: values laid over the file's, mappings key by key (the command line's ``--config``).

    Raises:
        ConfigError: the file is missing or no YAML, or a name or value in it is wrong; the message gives file, key,
            value and the nearest valid name.
    """
    source = Path(path)
    try:
        values = yaml.safe_load(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{source}: no such configuration file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {error}") from error
    return build_run_config(_merge(Section(values, str(source)).values, overrides or {}), str(source))


def build_run_config(values: Mapping[str, Any], source: str, *, check_params: bool = True) -> RunConfig:
    """Check a configuration that is already in memory; ``source`` names it in errors.

    Args:
        check_params: hold the methods' parameters against their modules, which brings in torch: seconds that a process
            of a run whose configuration was checked before can do without.

    Raises:
        ConfigError: as for ``load_run_config``.
    """
    top = Section(values, source)
    # Head identification reads its own section: it trains on models, which evaluations only use.
    top.allow("key", [*(item.name for item in fields(RunConfig) if item.name != "source"), "identification"])
    models = {name: _model(section) for name, section in top.section("models").named_sections()}
    suites = {name: _suite(name, section) for name, section in _known_suites(top).named_sections()}
    known = (*models, *shape_names())
    methods = {
        label: _method(label, section, tuple(suites), known, check_params)
        for label, section in top.section("methods").named_sections()
    }
    for name, found in (("models", models), ("methods", methods), ("suites", suites)):
        if not found:
            top.refuse(name, "names none; at least one is needed")
    return RunConfig(
        source=source,
        profile=top.folder_name("profile"),
        device=top.text("device", "auto"),
        dtype=top.choice("dtype", "dtype", ("auto", "float32", "bfloat16", "float16"), "auto"),
        seed=top.integer("seed", 0, 0),
        models=models,
        methods=methods,
        budgets=read_budgets(top),
        suites=suites,
        instrument=_instrument(top.section("instrument")),
        confidence=top.number("confidence", 0.5, 0.9999, 0.95),
        bootstrap_resamples=top.integer("bootstrap_resamples", 100, 2000),
        data=_data(top.section("data")),
        throughput=_throughput(top, models, methods),
    )


def _throughput(
    top: Section, models: Mapping[str, ModelSpec], methods: Mapping[str, MethodSpec]
) -> ThroughputSpec | None:
    """The throughput tests, or ``None`` where the configuration asks for none."""
    if top.values.get("throughput") is None:
        return None
    return read_throughput(top.section("throughput"), models, methods)


def _model(section: Section) -> ModelSpec:
    section.allow("key", ("path", "revision"))
    return ModelSpec(section.text("path"), section.optional_text("revision"))


def _method(
    label: str, section: Section, suites: Sequence[str], models: Sequence[str], check_params: bool
) -> MethodSpec:
    section.allow("key", ("method", "params", "suites", "budgets", "by_model"))
    name = section.text("method", label)
    if name not in method_names():
        section.refuse("method" if "method" in section.values else "", unknown_name("method", name, method_names()))
    takes_budget = load_card(name).limits.min_budget_tokens is not None
    params, by_model = section.section("params"), section.section("by_model")
    by_model.allow("model", models)
    for below in (params, *(by_model.section(model) for model in by_model.values)):
        if below.values and check_params:
            _check_params(name, below)
    only: tuple[str, ...] | None = None
    if section.values.get("suites") is not None:
        only = tuple(section.sequence("suites")) if section.values["suites"] != [] else ()
    for suite in only or ():
        if suite not in suites:
            section.refuse("suites", unknown_name("suite of this run", suite, suites))
    budgets = read_budgets(section) if section.values.get("budgets") is not None else None
    if budgets and not takes_budget:
        section.refuse("budgets", f"{name} takes no budget")
    per_model = {model: dict(by_model.section(model).values) for model in by_model.values}
    return MethodSpec(name, dict(params.values), takes_budget, only, budgets, per_model)


def _check_params(method: str, params: Section) -> None:
    # A method's module brings torch with it: seconds that reading a configuration should cost only where needed.
    from longdecode.methods.budgeted import build_params

    params_type = get_method(method).Params
    params.allow(f"parameter of {method}", [item.name for item in fields(params_type)])
    try:
        build_params(method, params_type, params.values)
    except ConfigError as error:
        params.refuse("", str(error))


def _known_suites(top: Section) -> Section:
    suites = top.section("suites")
    suites.allow("suite", suite_names())
    return suites


def _suite(name: str, section: Section) -> SuiteSpec:
    section.allow("key", ("contexts", "samples", "batch", "tasks"))
    tasks = tuple(section.sequence("tasks")) if section.values.get("tasks") is not None else default_tasks(name)
    for task in tasks:
        if task not in suite_tasks(name):
            section.refuse("tasks", unknown_name(f"task of {name}", task, suite_tasks(name)))
    return SuiteSpec(
        section.integers("contexts", 1), section.integer("samples", 1), section.integer("batch", 1, 1), tasks
    )


def _instrument(section: Section) -> InstrumentSpec:
    section.allow("key", [item.name for item in fields(InstrumentSpec)])
    default = InstrumentSpec()
    by_task = section.section("full_min_by_task")
    by_task.allow("task", task_names())
    return InstrumentSpec(
        full_label=section.text("full_label", default.full_label),
        full_min=section.number("full_min", 0, 1, default.full_min),
        full_min_by_task={task: by_task.number(task, 0, 1) for task in by_task.values},
        streaming_label=section.text("streaming_label", default.streaming_label),
        streaming_budget=section.number("streaming_budget", 0, 1, default.streaming_budget),
        streaming_max=section.number("streaming_max", 0, 1, default.streaming_max),
        quest_label=section.text("quest_label", default.quest_label),
        rise_tolerance=section.number("rise_tolerance", 0, 1, default.rise_tolerance),
        fall_budget_max=section.number("fall_budget_max", 0, 1, default.fall_budget_max),
        fall_task=section.choice("fall_task", "task", task_names(), default.fall_task),
        loss_task=section.choice("loss_task", "task", task_names(), default.loss_task),
    )


def _data(section: Section) -> dict[str, Path | None]:
    section.allow("data set", DATA_SETS)
    found = {name: section.optional_text(name) for name in section.values}
    return {name: Path(folder).expanduser() if folder else None for name, folder in found.items()}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
