"""Fair comparisons: tuning records, their values where a variant leaves a knob open, refusals of unfair runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pydantic import Field, ValidationError, model_validator

from longdecode.engine.errors import ConfigError
from longdecode.evals.records import Stored
from longdecode.methods.registry import load_card

if TYPE_CHECKING:
    from longdecode.evals.run_config import RunConfig
    from longdecode.evals.specs import MethodSpec

_OTHERWISE = "or `--config allow_untuned=true` runs it, without a verdict on them"


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


def read_tuning(path: Path) -> TuningRecord:
    """Read and check a tuning record.

    Raises:
        ConfigError: it is not JSON, or does not fit the schema.
    """
    try:
        return TuningRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {faults}") from error


class TuningStatus(NamedTuple):
    """The tuning of one variant on one model.

    ``tuned`` is ``None`` where nothing is tuned, ``learned`` for a method without head roles; roles that are made up by
    rule are not learned. ``untuned`` names the values that a record does not have.
    """

    variant: str
    tuned: bool | None = None
    learned: bool | None = None
    untuned: str = ""


def tuning_records(config: RunConfig) -> dict[str, TuningRecord]:
    """Return the tuning records of the run's models that are on hand."""
    return {model: read_tuning(path) for model, name in config.tuning.records.items() if (path := Path(name)).is_file()}


def require_records(config: RunConfig) -> dict[str, TuningRecord]:
    """Return the tuning records of the run's models, all that the configuration names.

    Raises:
        ConfigError: one is not there; the message names the file and the variants that take values from it.
    """
    known = tuning_records(config)
    for model, path in config.tuning.records.items():
        if model not in known:
            by = ", ".join(status.variant for status in tuning_statuses(config, model) if status.tuned is not None)
            raise ConfigError(
                f"{config.source}: tuning.records.{model}: {path}: no such tuning record, by which {by or 'none'} are "
                "tuned; put it back, make it (`snakemake tune`), or leave the key out"
            )
    return known


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


def tuning_statuses(config: RunConfig, model: str) -> list[TuningStatus]:
    """Return the status of every variant that is compared with others on a model.

    Variants that run on a part of the run only vary a method to learn about it, and are left out; one that names every
    suite and budget of the run is no part.
    """
    record = tuning_records(config).get(model)
    return [
        tuning_status(spec.method, spec.params_of(model), variant, record)
        for variant, spec in config.methods.items()
        if not _is_part(config, spec) and config.suites_of(variant) and spec.runs_on(model)
    ]


def untuned_beside_tuned(config: RunConfig) -> dict[tuple[str, str], str]:
    """Return by model and variant what was not tuned of a variant that is compared with tuned ones."""
    by_model = {model: tuning_statuses(config, model) for model in config.models}
    beside = [(model, s) for model, mine in by_model.items() if any(s.tuned for s in mine) for s in mine]
    return {(model, s.variant): s.untuned or "defaults" for model, s in beside if s.tuned is False}


def _is_part(config: RunConfig, spec: MethodSpec) -> bool:
    suites = set(config.suites) - set(spec.suites or config.suites)
    return bool(suites or set(config.budgets) - set(spec.budgets or config.budgets))


def tuning_status(method: str, params: Mapping[str, Any], variant: str, record: TuningRecord | None) -> TuningStatus:
    """Compare parameters on a model with the model's tuning record, or with the card where there is none.

    Without a record, values that the configuration sets count as tuned. With one, a number of the model that was not
    tuned along spoils the choice; another file or variant of the method does not.
    """
    card = load_card(method)
    roles = [knob for knob in card.knobs if knob.per_model and knob.file]
    if not (roles or card.tuned_knobs):
        return TuningStatus(variant)
    given = {knob.name: params.get(knob.name, knob.default) for knob in card.knobs}
    made_up = {knob.name: "not learned" for knob in roles if given[knob.name] == knob.default}
    learned = not made_up if roles else None
    set_here = any(given[knob.name] != knob.default for knob in card.tuned_knobs)
    found = record.methods.get(method) if record else None
    if record is None or (found is None and set_here):
        return TuningStatus(variant, set_here, learned)
    numbers = [knob for knob in card.knobs if knob.per_model and not knob.file] if found else card.tuned_knobs
    told = found.fixed | found.chosen if found else {knob.name: "none" for knob in numbers}
    # A knob that was not tuned along had its default.
    wanted = {knob.name: told.get(knob.name, knob.default) for knob in numbers}
    off = {name: f"tuned: {value!r}" for name, value in wanted.items() if given[name] != value} | made_up
    said = "; ".join(f"{name} = {given[name]!r}, {why}" for name, why in off.items())
    return TuningStatus(variant, not off, learned, said)


def require_fair(config: RunConfig) -> None:
    """Refuse a run that compares tuned methods with untuned ones.

    Raises:
        ConfigError: as ``require_records``; or methods are compared of which some are tuned and others are not; the
            message names both and the two ways out.
    """
    known = require_records(config)
    if config.allow_untuned:
        return

    def refuse(why: str) -> NoReturn:
        raise ConfigError(f"{config.source}: {why}, {_OTHERWISE}")

    for model, record in known.items():
        if record.model != model and not _is_checkpoint(config.models[model].path, record.model_hash):
            refuse(f"tuning.records.{model}: holds what was tuned on {record.model}; `snakemake tune` tunes on {model}")
    for model in config.models:
        mine = tuning_statuses(config, model)
        tuned, untuned = ([status for status in mine if status.tuned is flag] for flag in (True, False))
        if tuned and untuned:
            refuse(
                f"methods.{untuned[0].variant}: on {model} it is untuned ({untuned[0].untuned or 'defaults'}) and "
                f"{tuned[0].variant} is tuned; {len(untuned)} of {len(mine)} variants are untuned. Tune all "
                f"(`snakemake tune`, then tuning.records.{model})"
            )
        learned, made_up = ([status.variant for status in mine if status.learned is flag] for flag in (True, False))
        if made_up and learned:
            refuse(f"methods.{made_up[0]}: on {model} its roles are made up, those of {learned[0]} learned; learn both")


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
