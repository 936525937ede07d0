"""Give a paper's sections what they draw on: a run's results, its folder, the figures' writer and names in words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from longdecode.evals import stats
from longdecode.evals.budgets import token_share
from longdecode.evals.records import Record
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import MissingResult
from longdecode.reporting.papers.published import Published
from longdecode.reporting.papers.spec import PaperSpec
from longdecode.reporting.results import ALL_TASKS, REFERENCE_METHOD, Results
from longdecode.reporting.speed.measured import Speed

MAIN_SHARE = 0.10
MOST_RESAMPLES = 2000


class Mean(NamedTuple):
    """A mean score with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PaperInputs:
    """Everything a section may use.

    Args:
        spec: the page's declaration.
        results: the run's scores, every label among them.
        folder: the run's results folder, for what has no table of its own there.
        writer: where figures go.
        about: a model, and perhaps a suite, to the end of a caption.
        timed: a timed model to its words and device.
        pages: labels that have a page, and the registered method behind each.
    """

    spec: PaperSpec
    results: Results
    folder: Path
    writer: FigureWriter
    about: Callable[[str, str | None], str]
    timed: Callable[[str], str]
    pages: Mapping[str, str]

    @property
    def speed(self) -> Speed | None:
        """Return what was timed, if anything."""
        return self.results.speed

    @property
    def published(self) -> Published:
        """The paper's own figures."""
        return self.spec.published

    def words(self, part: str) -> Mapping[str, Any]:
        """Return the words of one part of the page."""
        found: Mapping[str, Any] = self.spec.words[part]
        return found

    def missing(self, what: str, command: str = "all") -> MissingResult:
        """Return a stated gap with one of the page's commands that fills it."""
        return MissingResult(
            f"{what.rstrip('.')}.", self.spec.words["commands"][command].format(profile=self.results.profile)
        )

    def elsewhere(self, part: str) -> str:
        """Return a link to a part on this paper's page of the run that holds it; empty where that is this run."""
        run, ours = self.spec.held.get(part, ""), self.results.profile
        if run in ("", ours) or ours not in self.spec.held.values():
            return ""
        return f"[{self.spec.words[part]['title']}](../{run}/paper-{self.spec.method}.html#{part})"

    def labels(self, kind: str, model: str | None = None) -> list[str]:
        """Return the scored labels of one registered method, in table order."""
        results = self.results
        mine = [label for label in results.labels if results.kind(label) == kind]
        return mine if model is None else [label for label in mine if (label, model) in results.ran]

    def label(self, kind: str, model: str) -> str | None:
        """Return the label that stands for a method: its own name, else the first label of that method."""
        labels = self.labels(kind, model)
        return kind if kind in labels else next(iter(labels), None)

    def params(self, label: str, model: str, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the parameters that a label ran with on one model, some of them left out."""
        table = self.results.summary
        rows = table[(table["method"] == label) & (table["model"] == model)]
        found = json.loads(rows["params"].iloc[0]) if len(rows) else {}
        return {name: value for name, value in found.items() if name not in without}

    def scores(self, suite: str, model: str | None = None) -> pd.DataFrame:
        """Return the summary's rows of a suite that have numbers, of one model or of all."""
        table = self.results.summary
        rows = table[(table["suite"] == suite) & (table["status"] == "ok")]
        return rows if model is None else rows[rows["model"] == model]

    def models_with(self, *suites: str) -> list[str]:
        """Return the models that any of the suites was scored on."""
        return [model for model in self.results.models if any(len(self.scores(suite, model)) for suite in suites)]

    def compared_models(self) -> list[str]:
        """Return the models on which the method ran any of the page's suites."""
        return [m for m in self.models_with(*self.spec.suites) if self.label(self.spec.method, m)]

    def contexts(self, model: str, suite: str) -> list[int]:
        """Return the contexts at which Full and the method both ran a suite."""
        rows = self.scores(suite, model)
        found = [set(rows.loc[rows["kind"] == kind, "context"]) for kind in (REFERENCE_METHOD, self.spec.method)]
        return sorted(map(int, found[0] & found[1]))

    def places(self, model: str, longest: bool = False) -> list[tuple[str, int]]:
        """Return the page's suites with their contexts, or with the longest of them alone."""
        found = {suite: self.contexts(model, suite)[-1 if longest else 0 :] for suite in self.spec.suites}
        return [(suite, context) for suite, contexts in found.items() for context in contexts]

    def records(self, model: str, places: Sequence[tuple[str, int]]) -> list[Record]:
        """Return the scored records of a model at some suites and contexts."""
        wanted = set(places)
        return [
            r for r in self.results.records
            if r.model == model and r.status == "ok" and (r.suite, r.context) in wanted
        ]  # fmt: skip

    def paper_model(self, model: str) -> str | None:
        """Return the paper's name of a model of this run, by the path it was taken from."""
        spec = (self.results.config.get("models") or {}).get(model) or {}
        return self.published.model_of(str(spec.get("path", model)))

    @property
    def alpha(self) -> float:
        """Level of the paired tests: one minus the coverage of the intervals."""
        return 1 - self.results.confidence

    @property
    def resamples(self) -> int:
        """Bootstrap draws: enough for a page, and never more than the run's own tables take."""
        return min(MOST_RESAMPLES, int(self.results.config.get("bootstrap_resamples", MOST_RESAMPLES)))

    def estimate(self, samples: pairs.Scored, *identity: object) -> stats.Estimate:
        """Return a mean with its interval; the draws are seeded by ``identity``."""
        return pairs.estimate(samples, self.results.confidence, self.resamples, *identity)

    def score(self, samples: pairs.Scored, model: str, label: str, budget: str) -> Mean:
        """Return the mean of a label's samples at one budget with its interval.

        Where the samples are those behind a row of summary.csv, the numbers are the row's, as on the suite's page.
        """
        row = self._row(samples, model, label, budget)
        if row is None or not _same(row["value"], pairs.mean_of(samples)):
            found = self.estimate(samples, model, label, budget, *sorted({key[:3] for key in samples}))
            return Mean(found.value, found.low, found.high)
        return Mean(float(row["value"]), float(row["low"]), float(row["high"]))

    def paired(self, ours: pairs.Scored, theirs: pairs.Scored, *identity: object) -> pairs.Paired:
        """Return a paired difference with interval, wins, losses and p-value; seeded by ``identity``."""
        return pairs.difference(ours, theirs, self.results.confidence, self.resamples, *identity)

    def minus_full(
        self, ours: pairs.Scored, full: pairs.Scored, model: str, label: str, budget: str
    ) -> pairs.Paired:  # fmt: skip
        """Return a label at one budget minus Full on the same model, with problems won and lost.

        Where the samples are those behind a row of summary.csv, difference, interval and p-value (Holm's) are the
        row's, so that this page and the suite's say one thing. No row holds a mean over several suites or contexts.
        """
        places = sorted({key[:3] for key in ours})
        found = self.paired(ours, full, model, label, budget, *places)
        row = self._row(ours, model, label, budget)
        if row is None or not _same(row["diff_to_full"], found.value):
            return found
        value, low, high, p_value = (float(row[name]) for name in ("diff_to_full", "diff_low", "diff_high", "p_holm"))
        return replace(found, value=value, low=low, high=high, p_value=p_value, after_holm=True)

    def _row(self, samples: pairs.Scored, model: str, label: str, budget: str) -> pd.Series | None:
        """Return the row of summary.csv over as many samples of the same tasks, suite and context, if there is one."""
        places, tasks = {(key[0], key[2]) for key in samples}, {key[1] for key in samples}
        if len(places) != 1:
            return None
        ((suite, context),) = places
        rows = self.scores(suite, model)
        rows = rows[rows["context"] == context]
        under_full = set(rows.loc[rows["kind"] == REFERENCE_METHOD, "task"]) - {ALL_TASKS}
        task = ALL_TASKS if len(tasks) > 1 and tasks == under_full else next(iter(tasks)) if len(tasks) == 1 else None
        mine = rows[(rows["method"] == label) & (rows["budget"] == budget) & (rows["task"] == task)]
        return mine.iloc[0] if len(mine) == 1 and int(mine["n"].iloc[0]) == len(samples) else None


def _same(listed: float, mean: float) -> bool:
    """Return whether a table's number is a mean of ours: six digits are listed, and scores may have been replaced."""
    return math.isclose(float(listed), mean, rel_tol=1e-4, abs_tol=1e-6)


def full_of(records: Sequence[Record]) -> dict[pairs.Key, pairs.Sample]:
    """Return Full's samples among records."""
    return pairs.scored([r for r in records if r.method == REFERENCE_METHOD])


def main_budget(budgets: Sequence[str]) -> str | None:
    """Return the budget nearest to a tenth of the context, among those given as a share."""
    shares = [text for text in budgets if token_share(text) is not None]
    return min(shares, key=lambda text: (abs(float(text) - MAIN_SHARE), float(text)), default=None)
