"""Say how the knobs of each label were chosen: the table of the page Provenance, and tags beside labels elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.evals.fairness import Standing, standing_of
from longdecode.evals.tuning_spec import TuningRecord, read_tuning
from longdecode.methods.head_roles import read_role_file
from longdecode.methods.registry import load_card, method_names
from longdecode.reporting.results import Results

HEADS = ("Label", "Model", "Tuning", "Knobs behind it", "Head roles learned on")
_TAGS = {"untuned": "untuned", "by hand": "set by hand"}


@dataclass(frozen=True, slots=True)
class TuningStatus:
    """Tuning of every label; ``aside`` are ablations, which compare with no other method.

    ``rows`` fill the table under ``HEADS``; ``missing`` says which models have no tuning record, and how to make one.
    """

    compared: Sequence[Standing]
    aside: Sequence[Standing] = ()
    rows: Sequence[tuple[str, ...]] = ()
    missing: Sequence[str] = ()

    def label_of(self, label: str) -> str:
        """Return the tag of a label that was not tuned as the others; empty where it was."""
        kinds = {entry.kind for entry in (*self.compared, *self.aside) if entry.label == label}
        return next((tag for kind, tag in _TAGS.items() if kind in kinds), "")

    @property
    def apart(self) -> list[tuple[str, list[str]]]:
        """Compared labels that were not tuned as the others, by their tag; every page names them."""
        labels = list(dict.fromkeys(entry.label for entry in self.compared))
        found = [(tag, [label for label in labels if self.label_of(label) == tag]) for tag in _TAGS.values()]
        return [(tag, names) for tag, names in found if names]


def tuning_status(results: Results) -> TuningStatus:
    """Read the run's tuning records and compare every label's parameters with them."""
    records, missing = _records(results)
    known = [
        entry
        for model in results.models
        for label in results.labels
        if results.kind(label) in method_names() and results.meant_for(label, model)
        if (entry := _standing(results, label, model, records.get(model))).kind != "nothing to tune"
    ]
    rows = [(e.label, e.model, e.kind, e.reason, _learned_on(results, e.label)) for e in known]
    compared, aside = ([e for e in known if (e.label in results.ablations) == odd] for odd in (False, True))
    return TuningStatus(compared, aside, rows, missing)


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


def _standing(results: Results, label: str, model: str, record: TuningRecord | None) -> Standing:
    rows = results.summary[(results.summary["method"] == label) & (results.summary["model"] == model)]
    params: dict[str, Any] = dict(json.loads(rows["params"].iloc[0])) if len(rows) else {}
    return standing_of(results.kind(label), params, label, model, record)


def _learned_on(results: Results, label: str) -> str:
    """Return the data that a label's head roles were learned on; empty for a label without learned roles."""
    path = str(results.params(label).get("roles", ""))
    if not path.endswith(".json") or not any(knob.file for knob in load_card(results.kind(label)).knobs):
        return ""
    try:
        return str(read_role_file(path).run.get("data", "unknown"))
    except LongDecodeError:
        return "role file not at hand"
