"""Tell how the forks of a run were trained, and how much longer than those of another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from longdecode.evals.adaptation_spec import AdaptationRun
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.forks import fork_of
from longdecode.reporting.results import ReportError
from longdecode.reporting.wording import number

_TIMES: Mapping[float, str] = {2: "twice", 3: "three times", 4: "four times"}
_APART = ("name", "steps", "log_every")
"""Settings that say which fork it is, and how long and how often written it is trained."""


@dataclass(frozen=True, slots=True)
class Training:
    """The training of a run's forks: optimiser steps and tokens of text, for each fork."""

    steps: int
    tokens: int


def recipes(inputs: PaperInputs) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of every fork of a run: those that its training recorded, else the configuration's."""
    adaptation = inputs.results.config.get("adaptation") or {}
    shared = adaptation.get("defaults") or {}
    found: dict[str, Mapping[str, Any]] = {
        name: asdict(AdaptationRun(**{**shared, **(given or {}), "name": name}))
        for name, given in (adaptation.get("runs") or {}).items()
    }
    for path in sorted(inputs.folder.glob("forks/*/*/run.json")):
        if path.parent.name in found:
            found[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))["settings"]
    return found


def training(inputs: PaperInputs) -> Training:
    """Return how long NOSA's fork of a run was trained.

    Raises:
        ReportError: the run has no fork of NOSA.
    """
    nosa = fork_of(inputs, "nosa")
    if nosa is None:
        raise ReportError(f"{inputs.folder}: no model of the run is a fork with NOSA")
    said = recipes(inputs)[nosa.name]
    return Training(said["steps"], said["steps"] * said["rows"] * said["length"])


def times_the_training(longer: PaperInputs, shorter: PaperInputs) -> str:
    """Return how many times the steps of one run's forks another run's have, in words.

    Raises:
        ReportError: one of them has no fork of NOSA.
    """
    factor = training(longer).steps / training(shorter).steps
    return f"{_TIMES.get(factor) or f'{number(factor, 0 if factor == int(factor) else 1)} times'} the training"


def differences(longer: PaperInputs, shorter: PaperInputs) -> list[str]:
    """Return the settings other than steps in which forks of one name differ between two runs."""
    ours, theirs = recipes(longer), recipes(shorter)
    return sorted(
        {
            key
            for name in ours.keys() & theirs.keys()
            for key in ours[name].keys() | theirs[name].keys()
            if key not in _APART and ours[name].get(key) != theirs[name].get(key)
        }
    )
