"""What several sections of the page need: its words, the labels that stand for each method, the main budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import MissingResult
from longdecode.reporting.papers.inputs import PaperInputs, load_words
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.wording import number

METHOD = "lychee"
SUITES = ("mini_recall", "mini_longgen")
RIVALS = ("tidal", "quest", "duo")
MAIN_SHARE = 0.10
WORDS = load_words(Path(__file__).parent / "words.yaml")


def hole(inputs: PaperInputs, what: str, command: str) -> MissingResult:
    """A stated hole with one of the commands of words.yaml."""
    return MissingResult(what, WORDS["commands"][command].format(profile=inputs.results.profile))


def label_of(inputs: PaperInputs, kind: str, model: str) -> str | None:
    """The label that stands for a method: its own name, else the first one of that method."""
    labels = inputs.labels(kind, model)
    return kind if kind in labels else next(iter(labels), None)


def main_budget(budgets: Sequence[str]) -> str | None:
    """The budget nearest to a tenth of the context, among those given as a share."""
    shares = [text for text in budgets if text != "full" and not text.isdigit()]
    return min(shares, key=lambda text: (abs(float(text) - MAIN_SHARE), float(text)), default=None)


def records_of(inputs: PaperInputs, model: str, suites: Sequence[str], contexts: Sequence[int] | None) -> list[Record]:
    """Records of a model on some suites that ran, at some contexts or at all."""
    return [
        r
        for r in inputs.results.records
        if r.model == model and r.suite in suites and r.status == "ok" and (contexts is None or r.context in contexts)
    ]


def contexts_of(inputs: PaperInputs, model: str, suite: str) -> list[int]:
    """Contexts at which Full and the method both ran a suite."""
    rows = inputs.scores(suite, model)
    full = set(rows.loc[rows["kind"] == REFERENCE_METHOD, "context"])
    return sorted(int(c) for c in full & set(rows.loc[rows["kind"] == METHOD, "context"]))


def full_of(records: Sequence[Record]) -> dict[pairs.Key, pairs.Sample]:
    """Full's samples among records."""
    return pairs.scored([r for r in records if r.method == REFERENCE_METHOD])


def resamples(inputs: PaperInputs) -> int:
    """Draws behind a bootstrap interval; enough for a page, and never more than the run's own tables take."""
    return min(2000, int(inputs.results.config.get("bootstrap_resamples", 2000)))


def points_text(value: float) -> str:
    """A signed difference of scores in points."""
    return number(100 * value, 1, signed=True)


def points_interval(low: float, high: float) -> str:
    """Its interval."""
    return wording.interval(100 * low, 100 * high, 1, signed=True)


def share_text(share: float) -> str:
    """A share in per cent with its sign."""
    return f"{wording.percent(share)}{wording.NARROW}%"
