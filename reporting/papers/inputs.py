"""What a paper's page may draw on: a run's results, its folder, the figures' writer and names in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers.published import Published
from longdecode.reporting.results import ALL_TASKS, Results
from longdecode.reporting.speed.measured import Speed
from longdecode.reporting.speed.targets import Verdict


@dataclass(frozen=True, slots=True)
class PaperInputs:
    """Everything a section may use.

    Args:
        results: the run's scores, every label among them.
        folder: the run's results folder, for what has no table of its own there.
        writer: where figures go.
        published: the paper's own figures.
        about: the end of a caption: a model, and perhaps a suite, to its words.
        timed: a timed model to its words and device.
        targets: the targets that were set for this paper.
        pages: labels that have a page, and the registered method behind each.
    """

    results: Results
    folder: Path
    writer: FigureWriter
    published: Published
    about: Callable[[str, str | None], str]
    timed: Callable[[str], str]
    targets: Sequence[Verdict]
    pages: Mapping[str, str]

    @property
    def speed(self) -> Speed | None:
        """What was timed, if anything."""
        return self.results.speed

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        return f"snakemake --cores 8 all --config profile={self.results.profile}"

    def labels(self, kind: str, model: str | None = None) -> list[str]:
        """Scored labels of one registered method, in table order."""
        table = self.results.summary
        rows = table if model is None else table[table["model"] == model]
        found = set(rows.loc[rows["kind"] == kind, "method"])
        return [label for label in self.results.labels if label in found]

    def scores(self, suite: str, model: str | None = None) -> pd.DataFrame:
        """Rows of a suite that have numbers, of one model or of all."""
        table = self.results.summary
        rows = table[(table["suite"] == suite) & (table["status"] == "ok")]
        return rows if model is None else rows[rows["model"] == model]

    def models_with(self, *suites: str) -> list[str]:
        """Models that any of the suites was scored on."""
        return [model for model in self.results.models if any(len(self.scores(suite, model)) for suite in suites)]

    def paper_model(self, model: str) -> str | None:
        """The paper's name of a model of this run, by the path it was taken from."""
        spec = (self.results.config.get("models") or {}).get(model) or {}
        return self.published.model_of(str(spec.get("path", model)))


def config_params(results: Results, label: str, model: str) -> dict[str, Any]:
    """The parameters that a label ran with on one model, as its records have them."""
    table = results.summary
    rows = table[(table["method"] == label) & (table["model"] == model)]
    return dict(json.loads(rows["params"].iloc[0])) if len(rows) else {}


def suite_mean(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the suite's mean where there is one, else those of its only task."""
    mean = rows[rows["task"] == ALL_TASKS]
    return mean if len(mean) else rows


def load_words(path: Path) -> dict[str, Any]:
    """A page's own words, from YAML beside it."""
    words: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return words
