"""Fair comparisons: tuning records, their values where a variant leaves a knob open, refusals of unfair runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pydantic import Field, ValidationError, model_validator

from longdecode.engine.errors import ConfigError
from longdecode.evals.records import Stored
from longdecode.methods.card import COMMON_WINDOW
from longdecode.methods.registry import load_card

if TYPE_CHECKING:
    from longdecode.evals.run_config import RunConfig
    from longdecode.evals.specs import MethodSpec

_OTHERWISE = "or `--config allow_untuned=true` runs it and marks the rows"
Kind = Literal["tuned", "by hand", "untuned", "nothing to tune", "common window"]


class Trial(Stored):
    """One setting of a method: the knobs' values, the mean score over the tasks that count, and each task's."""

    setting: dict[str, Any]
    value: float | None
    by_task: dict[str, float]
    status: str = "ok"


class Tuned(Stored):
    """A method's curve and choice: ``fixed`` are the parameters that were not tuned, ``seconds`` the time it took."""

    fixed: dict[str, Any]
    chosen: dict[str, Any]
    trials: tuple[Trial, ...]
    seconds: float


class TuningRecord(Stored):
    """All that was tuned on one model, with what it was tuned on; ``prompts`` are the SHA-256 of every prompt."""

    format: int = Field(default=1, ge=1, le=1)
    model: str
    model_hash: str
    revision: str
    device: str
    seed: int
    budget: float
    contexts: tuple[int, ...]
    samples: int
    settings: int
    full: dict[str, float]
    left_out: tuple[str, ...]
    methods: dict[str, Tuned]
    prompts: tuple[str, ...]

    @model_validator(mode="after")
    def _is_earned(self) -> TuningRecord:
        """Refuse a choice that no trial made, or that took more trials than every method was allowed."""
        for name, tuned in self.methods.items():
            scored = [(trial.value, trial.setting) for trial in tuned.trials if trial.value is not None]
            best = [setting for value, setting in scored if value == max(value for value, _ in scored)]
            if tuned.chosen not in best:
                raise ValueError(f"methods.{name}.chosen: {tuned.chosen} is no best trial")
            if len(tuned.trials) > self.settings:
                raise ValueError(f"methods.{name}.trials: {len(tuned.trials)}, over settings = {self.settings}")
        return self


def read_tuning(path: Path | str) -> TuningRecord:
    """Read and check a tuning record.

    Raises:
        ConfigError: it is not JSON, or does not fit the schema.
    """
    path = Path(path)
    try:
        return TuningRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {faults}") from error


@dataclass(frozen=True, slots=True)
class TuningStatus:
    """The tuning of one variant on one model; ``reason`` names the knobs behind it.

    ``reason`` also names other parameters than those that the values were tuned with, which leave a variant tuned.
    ``unlearned`` says whether head roles are made up by rule, ``None`` for a method without roles.
    """

    variant: str
    model: str
    kind: Kind
    reason: str = ""
    unlearned: bool | None = None

    def __str__(self) -> str:
        """Return the variant, with the knobs behind its status."""
        return f"{self.variant} ({self.reason})" if self.reason else self.variant


def tuning_records(config: RunConfig) -> dict[str, TuningRecord]:
    """Return the tuning records of the run's models that are on hand."""
    return {model: read_tuning(path) for model, path in config.tuning.records.items() if Path(path).is_file()}


def tuned_variants(config: RunConfig) -> dict[str, str]:
    """Return the methods that have knobs to tune, each with its first variant that is compared with others."""
    found: dict[str, str] = {}
    for variant, spec in config.methods.items():
        if spec.card.tuned_knobs and not _is_part(config, spec):
            found.setdefault(spec.method, variant)
    return found


def with_tuned_values(config: RunConfig) -> RunConfig:
    """Return the run with the tuned values of its records laid under each variant's own parameters."""
    records = tuning_records(config)

    def tuned(spec: MethodSpec) -> MethodSpec:
        found = {model: record.methods.get(spec.method) for model, record in records.items()}
        return replace(spec, tuned={model: made.chosen for model, made in found.items() if made})

    return replace(config, methods={name: tuned(spec) for name, spec in config.methods.items()}) if records else config


def tuning_statuses(config: RunConfig) -> list[TuningStatus]:
    """Return the status of every variant that is compared with others, on each model that it is scored on.

    Variants that run on a part of the run only vary a method to learn about it, and are left out; one that names every
    suite and budget of the run is no part.
    """
    records = tuning_records(config)
    return [
        tuning_status(spec.method, spec.params_of(model), variant, model, records.get(model))
        for model in config.models
        for variant, spec in config.methods.items()
        if not _is_part(config, spec) and config.suites_of(variant) and spec.runs_on(model)
    ]


def _is_part(config: RunConfig, spec: MethodSpec) -> bool:
    suites = set(config.suites) - set(spec.suites or config.suites)
    return bool(suites or set(config.budgets) - set(spec.budgets or config.budgets))


def tuning_status(
    method: str, params: Mapping[str, Any], variant: str, model: str, record: TuningRecord | None
) -> TuningStatus:
    """Compare parameters on a model with the model's tuning record, or with the card where there is none."""
    if variant.endswith(COMMON_WINDOW):
        return TuningStatus(variant, model, "common window", "sinks and recent tokens as every method's")
    knobs, tuned_knobs = load_card(method).knobs, load_card(method).tuned_knobs
    given = {knob.name: params.get(knob.name, knob.default) for knob in knobs}
    roles = [knob for knob in knobs if knob.per_model and knob.file]
    if not roles and not tuned_knobs:
        return TuningStatus(variant, model, "nothing to tune")
    unlearned = [f"{knob.name} = {knob.default!r}, not learned" for knob in roles if given[knob.name] == knob.default]
    made_up = bool(unlearned) if roles else None
    tuned = record.methods.get(method) if record else None
    moved = [knob.name for knob in tuned_knobs if given[knob.name] != knob.default]
    if record is None or (tuned is None and moved):
        return TuningStatus(variant, model, "by hand" if moved else "untuned", ", ".join(moved), made_up)
    chosen, fixed = (tuned.chosen, tuned.fixed) if tuned else ({}, None)
    off: list[str] = []
    beside: list[str] = []
    for knob in knobs:
        name, value = knob.name, given[knob.name]
        if knob in tuned_knobs:
            if name not in chosen or value != chosen[name]:
                off.append(f"{name} = {value!r}, tuned: {chosen.get(name, 'none')!r}")
        elif fixed is not None and value != (at := fixed.get(name, knob.default)):
            # A number of the model that was not tuned along spoils the choice; another file or variant does not.
            (off if knob.per_model and not knob.file else beside).append(f"{name} = {value!r}, tuned with {at!r}")
    off += unlearned
    return TuningStatus(variant, model, "untuned" if off else "tuned", "; ".join([*off, *beside]), made_up)


def require_fair(config: RunConfig) -> None:
    """Refuse a run that compares tuned methods with untuned ones.

    Raises:
        ConfigError: a tuning record is missing, or methods are compared of which some are tuned and others are not; the
            message names both and the two ways out.
    """
    if config.allow_untuned:
        return

    def refuse(key: str, why: str) -> NoReturn:
        raise ConfigError(f"{config.source}: {key}: {why}, {_OTHERWISE}")

    paths, known = config.tuning.records, tuning_records(config)
    for model in (model for model in paths if model in config.models):
        key, record = f"tuning.records.{model}", known.get(model)
        if record is None:
            refuse(key, f"{paths[model]}: no such tuning record; `snakemake tune` with this configuration makes it")
        if record.model != model and not _is_checkpoint(config.models[model].path, record.model_hash):
            refuse(key, f"holds what was tuned on {record.model}; `snakemake tune` tunes on {model}")
    for model in config.models:
        mine = [status for status in tuning_statuses(config) if status.model == model]
        tuned = [status for status in mine if status.kind in ("tuned", "by hand")]
        untuned = [status for status in mine if status.kind == "untuned"]
        if tuned and untuned:
            refuse(
                f"methods.{untuned[0].variant}",
                f"on {model} {untuned[0]} is untuned and {tuned[0]} is {tuned[0].kind}; {len(untuned)} of {len(mine)} "
                f"variants are untuned. Tune all (`snakemake tune`, then tuning.records.{model})",
            )
        made_up, learned = ([status.variant for status in mine if status.unlearned is flag] for flag in (True, False))
        if made_up and learned:
            refuse(
                f"methods.{made_up[0]}",
                f"on {model} the roles of {made_up[0]} are made up and those of {learned[0]} are learned; learn both",
            )


def _is_checkpoint(path: str, model_hash: str) -> bool:
    """Return whether a folder on this machine holds the checkpoint of that hash, under whatever name."""
    from longdecode.evals.provenance import checkpoint_hash

    return Path(path).is_dir() and checkpoint_hash(Path(path)) == model_hash


def tuned_prompts(config: RunConfig, model: str, model_hash: str) -> frozenset[str]:
    """Return the hashes of the prompts that a model's knobs were tuned on, which no table may ask.

    Args:
        config: the run.
        model: a key of ``config.models``.
        model_hash: of the checkpoint that is scored.

    Raises:
        ConfigError: the model's record was made with another checkpoint.
    """
    record = tuning_records(config).get(model)
    if record and record.model_hash != model_hash and not config.allow_untuned:
        raise ConfigError(
            f"{config.source}: tuning.records.{model}: tuned on another checkpoint ({record.model_hash[:12]}) than "
            f"{model}'s ({model_hash[:12]}); run `snakemake tune` again, {_OTHERWISE}"
        )
    return frozenset(record.prompts) if record else frozenset()
