"""Fair comparisons: tuned values where a label leaves a knob open, and refusals of runs that tune some methods only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longdecode.engine.errors import ConfigError
from longdecode.evals.tuning_spec import TuningRecord, read_tuning

if TYPE_CHECKING:
    from longdecode.evals.run_config import MethodSpec, RunConfig
    from longdecode.evals.tasks.base import Sample

SUFFIX = "+window"
"""Ends the name of a variant that runs with the sinks and recent tokens that others have too."""
_LABELLED = "or `--config allow_untuned=true` labels the rows"
Kind = Literal["tuned", "by hand", "untuned", "nothing to tune", "common window"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The tuning of one label on one model; ``reason`` names the knobs behind it.

    ``reason`` also names other parameters than those that the values were tuned with, which leave a label tuned.
    ``unlearned`` says whether head roles are made up by rule, ``None`` for a method without roles.
    """

    label: str
    model: str
    kind: Kind
    reason: str = ""
    unlearned: bool | None = None

    @property
    def words(self) -> str:
        """The label, with the knobs behind its standing."""
        return f"{self.label} ({self.reason})" if self.reason else self.label

    @property
    def has_been_tuned(self) -> bool:
        """True where somebody chose values for this model, by the protocol or by hand."""
        return self.kind in ("tuned", "by hand")


def tuning_records(config: RunConfig) -> dict[str, TuningRecord]:
    """Return the tuning records of the run's models that are on hand."""
    paths = config.tuning.records if config.tuning else {}
    return {model: read_tuning(path) for model, path in paths.items() if Path(path).is_file()}


def tuned_labels(config: RunConfig) -> dict[str, str]:
    """Return the methods that have knobs to tune, each with the first label of the run that is compared with others."""
    found: dict[str, str] = {}
    for label, spec in config.methods.items():
        if spec.card.tuned_knobs and not spec.is_ablation:
            found.setdefault(spec.method, label)
    return found


def with_tuned_values(config: RunConfig) -> RunConfig:
    """Return the run with the tuned values of its records laid under each label's own parameters."""
    records = tuning_records(config)
    if not records:
        return config
    chosen = {
        model: {name: tuned.chosen for name, tuned in record.methods.items()} for model, record in records.items()
    }
    methods = {
        label: replace(
            spec, tuned={model: found[spec.method] for model, found in chosen.items() if spec.method in found}
        )
        for label, spec in config.methods.items()
    }
    return replace(config, methods=methods)


def standings(config: RunConfig, records: Mapping[str, TuningRecord] | None = None) -> list[Standing]:
    """Return the standing of every label that stands beside others, on each model that it is scored on.

    Labels that run on a part of the run only vary a method to learn about it, and are left out; one that names every
    suite and budget of the run is no part.
    """
    known = tuning_records(config) if records is None else records
    return [
        standing(spec, label, model, known.get(model))
        for model in config.models
        for label, spec in config.methods.items()
        if not _is_part(config, spec) and config.suites_of(label) and spec.runs_on(model)
    ]


def _is_part(config: RunConfig, spec: MethodSpec) -> bool:
    suites = spec.suites is not None and bool(set(config.suites) - set(spec.suites))
    budgets = spec.budgets is not None and bool(set(config.budgets) - set(spec.budgets))
    return spec.is_ablation and (suites or budgets)


def standing(spec: MethodSpec, label: str, model: str, record: TuningRecord | None) -> Standing:
    """Compare a label's parameters on a model with the model's tuning record, or with the card where there is none."""
    return standing_of(spec.method, spec.params_of(model), label, model, record)


def standing_of(
    method: str, params: Mapping[str, Any], label: str, model: str, record: TuningRecord | None
) -> Standing:
    """Compare parameters on a model with the model's tuning record, or with the card where there is none."""
    from longdecode.methods.registry import load_card

    if label.endswith(SUFFIX):
        return Standing(label, model, "common window", "sinks and recent tokens as every method's")
    card = load_card(method)
    learned = [knob for knob in card.knobs if knob.per_model and knob.file]
    given = {knob.name: params.get(knob.name, knob.default) for knob in card.knobs}
    if not learned and not card.tuned_knobs:
        return Standing(label, model, "nothing to tune")
    unlearned = [f"{knob.name} = {knob.default!r}, not learned" for knob in learned if given[knob.name] == knob.default]
    has_rule = bool(unlearned) if learned else None
    if record is None:
        moved = [knob.name for knob in card.tuned_knobs if given[knob.name] != knob.default]
        kind: Kind = "by hand" if moved else "untuned"
        return Standing(label, model, kind, ", ".join(moved), has_rule)
    tuned = record.methods.get(method)
    chosen = tuned.chosen if tuned else {}
    off = [
        f"{knob.name} = {given[knob.name]!r}, tuned: {chosen.get(knob.name, 'none')!r}"
        for knob in card.tuned_knobs
        if knob.name not in chosen or given[knob.name] != chosen[knob.name]
    ]
    beside = {
        knob.name: f"{knob.name} = {given[knob.name]!r}, tuned with {tuned.fixed.get(knob.name, knob.default)!r}"
        for knob in card.knobs
        if tuned and knob not in card.tuned_knobs and given[knob.name] != tuned.fixed.get(knob.name, knob.default)
    }
    off += [beside.pop(knob.name) for knob in card.knobs if knob.name in beside and knob.per_model and not knob.file]
    off += unlearned
    return Standing(label, model, "untuned" if off else "tuned", "; ".join([*off, *beside.values()]), has_rule)


def require_fair(config: RunConfig) -> None:
    """Refuse a run that compares tuned methods with untuned ones.

    Raises:
        ConfigError: a tuning record is missing, or methods stand beside each other of which some are tuned and others
            are not; the message names both and the two ways out.
    """
    if config.allow_untuned:
        return
    for model, path in (config.tuning.records if config.tuning else {}).items():
        if model in config.models and not Path(path).is_file():
            raise ConfigError(
                f"{config.source}: tuning.records.{model}: {path}: no such tuning record; `snakemake tune` with this "
                f"configuration makes it, {_LABELLED}"
            )
    for model, record in tuning_records(config).items():
        if record.model != model and not _is_checkpoint(config.models[model].path, record.model_hash):
            raise ConfigError(
                f"{config.source}: tuning.records.{model}: holds what was tuned on {record.model}; `snakemake tune` "
                f"with this configuration tunes on {model}, {_LABELLED}"
            )
    found = standings(config)
    for model in config.models:
        mine = [entry for entry in found if entry.model == model]
        tuned = [entry for entry in mine if entry.has_been_tuned]
        untuned = [entry for entry in mine if entry.kind == "untuned"]
        if tuned and untuned:
            raise ConfigError(
                f"{config.source}: methods.{untuned[0].label}: on {model} {untuned[0].words} is untuned and "
                f"{tuned[0].words} is {tuned[0].kind}; {len(untuned)} of {len(mine)} labels are untuned. Tune all "
                f"(`snakemake tune`, then tuning.records.{model}), {_LABELLED}"
            )
        made_up, learned = ([entry for entry in mine if entry.unlearned is flag] for flag in (True, False))
        if made_up and learned:
            raise ConfigError(
                f"{config.source}: methods.{made_up[0].label}: on {model} the roles of {made_up[0].label} are made up "
                f"and those of {learned[0].label} are learned; learn both (`snakemake lychee_train`), {_LABELLED}"
            )


def _is_checkpoint(path: str, model_hash: str) -> bool:
    """Tell whether a folder on this machine holds the checkpoint of that hash, under whatever name."""
    from longdecode.evals.provenance import checkpoint_hash

    return Path(path).is_dir() and checkpoint_hash(Path(path)) == model_hash


class TuningGuard:
    """Refuses prompts that a knob was tuned on, and values that were tuned on another checkpoint.

    Args:
        config: the run.
        model: a key of ``config.models``.
        model_hash: of the checkpoint that is scored.

    Raises:
        ConfigError: the model's record was made with another checkpoint.
    """

    def __init__(self, config: RunConfig, model: str, model_hash: str):
        record = tuning_records(config).get(model)
        self.prompts = frozenset(record.prompts) if record else frozenset()
        if record and record.model_hash != model_hash and not config.allow_untuned:
            raise ConfigError(
                f"{config.source}: tuning.records.{model}: tuned on another checkpoint ({record.model_hash[:12]}) than "
                f"{model}'s ({model_hash[:12]}); run `snakemake tune` again, {_LABELLED}"
            )

    def check(self, task: str, context: int, samples: Iterable[Sample]) -> None:
        """Refuse samples whose prompt is among those tuned on.

        Raises:
            ConfigError: a prompt is.
        """
        for sample in samples:
            if self.prompts and prompt_hash(sample) in self.prompts:
                raise ConfigError(
                    f"{task} at {context} tokens, sample {sample.index}: knobs were tuned on this prompt, so its score "
                    "would flatter them; choose another tuning.seed or other tuning.contexts"
                )


def prompt_hash(sample: Sample) -> str:
    """Hash a prompt as records do."""
    from longdecode.evals.fingerprint import hash_texts

    return hash_texts([sample.prompt, sample.forced])
