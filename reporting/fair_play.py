"""Fill the page about fair play: what was tuned, with what effort, on what, and which labels stand outside of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.evals.common_window import SUFFIX
from longdecode.evals.fairness import Standing, standing_of
from longdecode.evals.tuning_spec import Trial, Tuned, TuningRecord, read_tuning
from longdecode.methods.head_roles import read_role_file
from longdecode.methods.registry import load_card, method_names
from longdecode.reporting.results import Results, Topic
from longdecode.reporting.wording import DASH, budget, budget_order, listing, number, score, short_tokens, with_unit

TRAINED_ON = {"mini_passkey": "look-ups", "mini_two_hop": "look-ups", "passkey": "look-ups", "hotpotqa": "HotpotQA"}
"""Family of the generator behind each data set that head roles are learned on."""


@dataclass(frozen=True, slots=True)
class TunedModel:
    """One model's tuning record as the page shows it: a row a method, and the curve of each."""

    model: str
    effort: str
    rows: list[tuple[str, ...]]
    curves: list[tuple[str, list[tuple[str, ...]]]]
    heads: tuple[str, ...] = ("Method", "Chosen", "Score, %", "Untuned, %", "Settings tried", "Time, s")
    numeric: tuple[int, ...] = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class FairPlay:
    """The page's parts; ``missing`` says what was not tuned, with the command that does it.

    ``aside`` are the standings of ablations, which compare with no other method.
    """

    models: list[TunedModel]
    standings: list[Standing]
    roles: list[tuple[str, str, str, str]]
    windows: list[tuple[str, ...]]
    older: list[dict[str, Any]]
    missing: list[str]
    aside: Sequence[Standing] = ()

    def label_of(self, label: str) -> str:
        """Return what stands beside a label where it was not tuned as the others; empty where it was."""
        kinds = {entry.kind for entry in (*self.standings, *self.aside) if entry.label == label}
        return "untuned" if "untuned" in kinds else "set by hand" if "by hand" in kinds else ""

    @property
    def apart(self) -> list[tuple[str, list[str]]]:
        """The labels that were not tuned as the others, by what stands beside them; every page names them."""
        labels = list(dict.fromkeys(entry.label for entry in self.standings))
        found = [(kind, [x for x in labels if self.label_of(x) == kind]) for kind in ("untuned", "set by hand")]
        return [(kind, names) for kind, names in found if names]

    @property
    def short(self) -> str:
        """Say in a few words how knobs were chosen: the exceptions, where most were tuned alike."""
        odd: dict[str, list[str]] = {}
        for entry in self.standings:
            if entry.kind != "tuned" and entry.label not in odd.setdefault(entry.kind, []):
                odd[entry.kind].append(entry.label)
        if not self.standings:
            return "no knobs to tune"
        if all(entry.kind == "untuned" for entry in self.standings):
            return f"nothing was tuned for this model: {listing(odd['untuned'])} at default knobs"
        names = {"by hand": "set by hand", "untuned": "not tuned, at default knobs"}
        parts = [f"{listing(found)} {names.get(kind, kind)}" for kind, found in odd.items()]
        tuned = any(entry.kind == "tuned" for entry in self.standings)
        return "; ".join([*(["knobs tuned alike"] if tuned else ["nothing was tuned by the protocol"]), *parts])


def fair_play(results: Results, results_dir: Path, families: Mapping[str, str]) -> FairPlay:
    """Read the run's tuning records and compare every label's parameters with them.

    Args:
        results: the whole run.
        results_dir: where an older sweep, ``tuning.csv``, may lie.
        families: suite to the family of its generator.
    """
    records, missing = _records(results)
    standings = [
        standing_of(results.kind(label), _params(results, model, label), label, model, records.get(model))
        for model in results.models
        for label in results.labels
        if results.kind(label) in method_names() and results.meant_for(label, model)
    ]
    known = [entry for entry in standings if entry.kind != "nothing to tune"]
    compared = [entry for entry in known if entry.label not in results.ablations]
    older = results_dir / "tuning.csv"
    return FairPlay(
        [_model(model, record) for model, record in records.items()],
        compared,
        _roles(results, families),
        _windows(results),
        [dict(row) for _, row in pd.read_csv(older).iterrows()] if older.exists() else [],
        missing,
        [entry for entry in known if entry.label in results.ablations],
    )


def _records(results: Results) -> tuple[dict[str, TuningRecord], list[str]]:
    paths = (results.config.get("tuning") or {}).get("records") or {}
    found: dict[str, TuningRecord] = {}
    missing = []
    for model in results.models:
        if model not in paths:
            missing.append(
                f"This run names no tuning record for {model}: values are the cards' defaults or set by hand. "
                "`snakemake tune` with its configuration makes one; then name it under tuning.records."
            )
            continue
        try:
            found[model] = read_tuning(paths[model])
        except ConfigError as error:
            missing.append(str(error))
    return found, missing


def _params(results: Results, model: str, label: str) -> dict[str, Any]:
    rows = results.summary[(results.summary["method"] == label) & (results.summary["model"] == model)]
    return dict(json.loads(rows["params"].iloc[0])) if len(rows) else {}


def _model(model: str, record: TuningRecord) -> TunedModel:
    full = ", ".join(f"{task} {100 * value:.1f} %" for task, value in record.full.items())
    left_out = f"; left out: {listing(list(record.left_out))}" if record.left_out else ""
    effort = (
        f"At most {record.settings} settings a method, each on the same {len(record.prompts)} prompts "
        f"({record.samples} a task and context, {listing([f'{c:,}' for c in record.contexts])} tokens, "
        f"seed {record.seed:,}, budget {100 * record.budget:g} %; Full: {full}{left_out}). "
        f"Tuned on {record.device}, revision {record.revision[:12]}."
    )
    rows = [_row(method, tuned) for method, tuned in record.methods.items()]
    curves = [(method, [_point(trial, tuned) for trial in tuned.trials]) for method, tuned in record.methods.items()]
    return TunedModel(model, effort, rows, curves)


def _row(method: str, tuned: Tuned) -> tuple[str, ...]:
    best = next(trial for trial in tuned.trials if trial.setting == tuned.chosen)
    first = tuned.trials[0]
    return (
        method,
        _setting(tuned.chosen),
        _value(best.value),
        _value(first.value),
        str(len(tuned.trials)),
        number(tuned.seconds, 0),
    )


def _point(trial: Trial, tuned: Tuned) -> tuple[str, ...]:
    chosen = "chosen" if trial.setting == tuned.chosen else ""
    return _setting(trial.setting), _value(trial.value) if trial.status == "ok" else trial.status, chosen


def _value(value: float | None) -> str:
    return DASH if value is None else number(100 * value, 1)


def _setting(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in setting.items())


def _roles(results: Results, families: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """For each label with learned roles: their data, and the suites of the same generator and of others."""
    found = []
    for label in results.labels:
        params = results.params(label)
        path = str(params.get("roles", ""))
        if (
            label in results.ablations
            or not path.endswith(".json")
            or not any(knob.file for knob in load_card(results.kind(label)).knobs)
        ):
            continue
        try:
            data = str(read_role_file(path).run.get("data", "unknown"))
        except LongDecodeError:
            found.append((label, "role file not at hand", "unknown", "unknown"))
            continue
        family = TRAINED_ON.get(data, data)
        same = [suite for suite in results.suites if families.get(suite) == family]
        others = [suite for suite in results.suites if suite not in same]
        found.append((label, f"{family} ({data})", listing(same), listing(others)))
    return found


def _windows(results: Results) -> list[tuple[str, ...]]:
    """Own beside common windows: each method's score under both, at the largest budget that both ran at."""
    rows = []
    for label in results.labels:
        twin = f"{label}{SUFFIX}"
        if twin not in results.labels:
            continue
        for topic in (topic for model in results.models for topic in results.topics(model)):
            rows += _window_rows(results, topic, label, twin)
    return rows


def _window_rows(results: Results, topic: Topic, label: str, twin: str) -> list[tuple[str, ...]]:
    table = results.rows_of(topic)
    table = table[(table["status"] == "ok") & table["method"].isin([label, twin])]
    found: list[tuple[str, ...]] = []
    for context, here in table.groupby("context"):
        budgets = [set(here.loc[here["method"] == name, "budget"]) for name in (label, twin)]
        for text in sorted(budgets[0] & budgets[1], key=budget_order)[-1:]:
            own, common = (
                fmean(here.loc[(here["method"] == name) & (here["budget"] == text), "value"]) for name in (label, twin)
            )
            place = (label, topic.name, short_tokens(int(str(context))), budget(text))
            found.append((*place, *(with_unit(score(value, topic.unit), topic.unit) for value in (own, common))))
    return found
