"""Tune what belongs to one model, alike for every method, on prompts that no table uses; see ``snakemake tune``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from longdecode.engine.config_reader import read_config
from longdecode.engine.device import device_name, resolve_device
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.evals import provenance
from longdecode.evals.budgets import Budget
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.fairness import Trial, Tuned, TuningRecord, tuned_variants
from longdecode.evals.records import Record
from longdecode.evals.run_config import REFERENCE_METHOD, RunConfig
from longdecode.evals.specs import TUNING_SUITE, MethodSpec, SuiteSpec, TuningSpec
from longdecode.evals.store import read_records, write_text
from longdecode.evals.tasks.registry import suite_tasks
from longdecode.methods.card import Card
from longdecode.methods.conformance_bench import make_bench

LAYERS = 8
"""Layers that are tried first where a knob is a layer, evenly spaced over the depth; then the best one's neighbours."""
BATCH = 16
"""Prompts decoded at once: two caches of 16 prompts of 16K tokens leave room for other jobs on a GPU."""


def choices_of(card: Card, num_layers: int) -> dict[str, list[Any]]:
    """Return the values that are tried first for each tuned knob of a method, knobs in the card's order."""
    return {
        knob.name: list(knob.settings) if knob.first_layer is None
        else list(range(knob.first_layer, num_layers, max(1, -(-(num_layers - knob.first_layer) // LAYERS))))
        for knob in card.tuned_knobs
    }  # fmt: skip


def wider(best: Any, tried: Sequence[Any], layers: range | None = None) -> list[float]:
    """Return values to try next, so that the best one is at no end of what was tried.

    Beyond the ends whole numbers double and halve, odd ones to odd ones; shares go half the way to 1, and halve.
    Nothing lies below 0, or beyond words. Of a layer, the best one's neighbours are tried.

    Args:
        best: the best value so far.
        tried: all values so far, ``best`` among them.
        layers: those that are possible, where the knob is a layer.
    """
    if layers is not None:
        return [layer for layer in (best - 1, best + 1) if layer in layers and layer not in tried]
    if isinstance(best, str):
        return []
    whole, odd = isinstance(best, int), all(value % 2 == 1 for value in tried)
    if best == max(tried):
        return [best * 2 + odd if whole else (1 + best) / 2]
    if best == min(tried) and best > int(whole):
        return [best // 2 - (odd and best % 4 == 1) if whole else best / 2]
    return []


def swept(config: RunConfig, methods: Mapping[str, MethodSpec], tasks: Sequence[str] = ()) -> RunConfig:
    """Return a configuration that scores variants on the tuning prompts; see ``sweep``."""
    spec = config.tuning
    tasks = tasks or spec.tasks or suite_tasks(TUNING_SUITE)
    suites = {TUNING_SUITE: SuiteSpec(spec.contexts, spec.samples, min(spec.samples, BATCH), tuple(tasks))}
    return replace(
        config, profile=TUNING_SUITE, methods=dict(methods), budgets=(Budget(spec.budget),), seed=spec.seed,
        suites=suites, tuning=TuningSpec(),
    )  # fmt: skip


def sweep(
    config: RunConfig, model: str, methods: Mapping[str, MethodSpec], tasks: Sequence[str] = ()
) -> dict[str, list[Record]]:
    """Score variants on the tuning prompts of a model and return each one's records.

    Conformance is not asked for here: it is the gate of what is scored and timed.

    Args:
        tasks: those that are asked; the configuration's, or all, where left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = {variant: Path(folder) / f"{variant}.parquet" for variant in methods}
        evaluate_suite(swept(config, methods, tasks), model, TUNING_SUITE, outputs, gated=False)
        return {variant: read_records(path, Record) for variant, path in outputs.items()}


def tune(config: RunConfig, model: str, output: Path) -> TuningRecord:
    """Tune every method of a run on one model and write the record.

    Raises:
        ConfigError: Full solves none of the tuning tasks, so that a score would choose nothing.
    """
    spec, folder = config.tuning, config.models[model].checkpoint()
    layers = read_config(folder).num_layers
    full = sweep(config, model, {REFERENCE_METHOD: MethodSpec(REFERENCE_METHOD)})[REFERENCE_METHOD]
    solved = _by_task(full)
    kept = {task for task, score in solved.items() if score >= spec.full_min}
    if not kept:
        raise ConfigError(
            f"tuning on {model}: Full scores {solved or 'nothing'}, under tuning.full_min = {spec.full_min} on every "
            "task; name tasks or contexts that the model can do"
        )
    found: dict[str, Tuned] = {}
    for method, variant in tuned_variants(config).items():
        found[method] = _tuned(config, model, config.methods[variant], layers, kept)
        print(f"{method}: {found[method].chosen} after {found[method].seconds:.0f} s", flush=True)
    record = TuningRecord(
        model=model, model_hash=provenance.checkpoint_hash(folder),
        revision=provenance.revision() + ("+dirty" if provenance.is_dirty() else ""),
        device=device_name(resolve_device(config.device)), seed=spec.seed, budget=spec.budget, contexts=spec.contexts,
        samples=spec.samples, settings=spec.settings, full=solved, methods=found,
        left_out=tuple(sorted({r.task for r in full} - kept)),
        prompts=tuple(sorted({r.prompt_sha256 for r in full if r.prompt_sha256})),
    )  # fmt: skip
    write_text(output, record.model_dump_json(indent=1) + "\n")
    return record


def _tuned(config: RunConfig, model: str, spec: MethodSpec, layers: int, kept: set[str]) -> Tuned:
    """Sweep one knob after the other, the others at their best so far, and go on where the best is at an end.

    The present value is tried first, so that any effort covers it, and stays where no setting differs from it; such a
    knob is swept again behind the others. Of settings that score alike otherwise, the smallest is taken.
    """
    began, fixed, most = time.monotonic(), spec.own_params(model), config.tuning.settings
    bare, choices = replace(spec, by_model={}, suites=None, budgets=None, tuned={}), choices_of(spec.card, layers)
    first_layers = {knob.name: knob.first_layer for knob in spec.card.tuned_knobs if knob.first_layer is not None}
    best = {knob.name: fixed.get(knob.name, knob.default) for knob in spec.card.tuned_knobs}
    trials: list[Trial] = []
    sweeps = [*choices.items()]
    for name, values in sweeps:
        wanted = values
        while wanted:
            known = [trial.setting for trial in trials]
            asked = [best | {name: value} for value in sorted(wanted, key=lambda value: value != best[name])]
            new = [one for one in asked if one not in known and accepts(spec.method, {**fixed, **one})]
            tried = new[: most - len(trials)]
            variants = {f"s{i}": replace(bare, params={**fixed, **setting}) for i, setting in enumerate(tried)}
            records = sweep(config, model, variants, sorted(kept)) if variants else {}
            made = [_trial(setting, records[label], kept) for setting, label in zip(tried, variants, strict=True)]
            trials += made
            if flat := wanted is values and len(made) > 1 and len({trial.value for trial in made}) == 1:
                sweeps.append((name, values))  # under the others' choices it may tell settings apart
            ran = [trial for trial in trials if trial.value is not None]
            if not ran:
                raise ConfigError(f"tuning {spec.method} on {model}: no setting ran, {trials[0].status!r}")
            top = max(ran, key=lambda t: (t.value or 0.0, -sum(v for v in t.setting.values() if v != str(v))))
            now = next((trial.value for trial in ran if trial.setting == best), None)
            # Beyond a grid a tie moves nothing: the choice would walk to an end that no score asks for.
            if now != top.value or (wanted is values and len({trial.value for trial in ran}) > 1):
                best = top.setting
            possible = range(first_layers[name], layers) if name in first_layers else None
            told = [trial.setting[name] for trial in trials]
            wanted = wider(best[name], told, possible) if tried and best[name] in told and not flat else []
    unswept = {name: value for name, value in fixed.items() if name not in choices}
    return Tuned(fixed=unswept, chosen=best, trials=tuple(trials), seconds=round(time.monotonic() - began, 1))


def accepts(method: str, params: Mapping[str, Any]) -> bool:
    """Return whether a method takes these parameters, and the gate can check them: beyond a grid it may be neither."""
    try:
        make_bench(method, "cpu", params, dtype=torch.float32, seed=0)
    except (ConfigError, UnsupportedCellError):
        return False
    return True


def _trial(setting: dict[str, Any], records: Sequence[Record], kept: set[str]) -> Trial:
    scores = _by_task(records)
    if missing := kept - scores.keys():
        reasons = [f"{r.status}: {r.reason}" for r in records if r.task in missing and r.reason]
        return Trial(setting=setting, value=None, by_task=scores, status=reasons[0] if reasons else "no score")
    return Trial(setting=setting, value=fmean(scores[task] for task in sorted(kept)), by_task=scores)


def _by_task(records: Sequence[Record]) -> dict[str, float]:
    scored = [(record.task, record.score) for record in records if record.score is not None]
    return {name: round(fmean(score for task, score in scored if task == name), 6) for name in sorted(dict(scored))}
