"""Read a run's long texts, and give what was measured of them at any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from longdecode.evals import stats
from longdecode.evals.records import Record
from longdecode.evals.storage import read_records, stamped_drafters
from longdecode.reporting import wording
from longdecode.reporting.results import TextFile
from longdecode.reporting.staleness import old_texts

MEASURED = ("alpha", "beta", "speedup", "tokens_per_step", "ms_per_token", "minutes")
"""Columns that depend on how much was written."""
DISTINCT = ("distinct_1", "distinct_2", "distinct_3", "distinct_4")


RESAMPLES = 2000
"""Bootstrap draws of an interval over ten prompts or more."""


@dataclass(frozen=True, slots=True)
class Value:
    """Hold what was measured after each prompt."""

    each: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over prompts."""
        return fmean(self.each)

    @property
    def prompts(self) -> int:
        """Number of prompts."""
        return len(self.each)

    def estimate(self, confidence: float) -> stats.Estimate:
        """Return the mean with its interval over prompts, which one prompt does not have."""
        scores = stats.Scores(np.array(self.each), np.arange(len(self.each)))
        return stats.mean_estimate(scores, confidence, RESAMPLES, stats.generator("texts", *self.each))

    def bounds(self, confidence: float, digits: int = 2) -> str:
        """Return the interval as text, or that there is one prompt alone."""
        if self.prompts < 2:
            return "1 prompt"
        found = self.estimate(confidence)
        return wording.interval(found.low, found.high, digits)


@dataclass(frozen=True, slots=True)
class Jobs:
    """All texts of a results folder; ``runs`` and ``fulls``, the run and Full's text of the same job, go by ``id``.

    ``old`` holds the ``id`` of each text that other code than today's wrote.
    """

    records: Sequence[Record]
    runs: Mapping[int, str]
    fulls: Mapping[int, Record]
    old: frozenset[int]


def texts(folder: Path) -> Sequence[Record]:
    """Return the records of all texts below a results folder, those that could not be written among them."""
    return _read(folder).records


def run_of(folder: Path, record: Record) -> str:
    """Return the run that wrote one of ``texts``."""
    return _read(folder).runs[id(record)]


def is_old(folder: Path, record: Record) -> bool:
    """Return whether other code than today's wrote one of ``texts``."""
    return id(record) in _read(folder).old


def _read(folder: Path) -> Jobs:
    place = folder / "generation"
    return _read_anew(place, max((file.stat().st_mtime_ns for file in place.glob("*.parquet")), default=0))


@lru_cache(maxsize=4)
def _read_anew(place: Path, changed: int) -> Jobs:
    records, runs, found, old = list[Record](), dict[int, str](), dict[int, Record](), set[int]()
    for file in sorted(place.glob("*.parquet")):
        here = read_records(file, Record)
        records += here
        old |= {id(r) for r in old_texts(TextFile(here, stamped_drafters(file)))}
        runs |= {id(r): file.stem for r in here}
        own = {place_of(r): r for r in here if r.label == "full" and r.status == "ok"}
        found |= {id(r): own[place_of(r)] for r in here if place_of(r) in own}
    return Jobs(tuple(records), runs, found, frozenset(old))


def written(folder: Path, **wanted: Any) -> list[Record]:
    """Return texts that were written, by fields of a record."""
    return [r for r in texts(folder) if r.status == "ok" and all(getattr(r, k) == v for k, v in wanted.items())]


def longest(records: Sequence[Record]) -> int:
    """Return the most tokens that any of the texts has."""
    return max((int(r.measures.get("tokens", 0)) for r in records), default=0)


def standing(records: Sequence[Record], labels: str | Sequence[str]) -> list[Record]:
    """Return the longest text after each prompt of the label that wrote most, of several such labels the first's."""
    names = [labels] if isinstance(labels, str) else labels
    own = max(([r for r in records if r.label == name] for name in names), key=longest)
    by_length = sorted(own, key=lambda r: r.measures.get("tokens", 0))
    return list({(*place_of(r), r.budget): r for r in by_length}.values())


def value(records: Sequence[Record], fulls: Mapping[int, Record], column: str, past: int) -> Value | None:
    """Return a column over prompts at ``past`` tokens, ``None`` where no text is so long or has it.

    Args:
        records: texts of one label, sampler and prompt length.
        fulls: those of ``fulls``.
        column: a name of ``MEASURED`` or ``DISTINCT``, ``average``, or another measure.
        past: tokens written.
    """
    found = [seen for r in records if (seen := _one(r, fulls.get(id(r)), column, past)) is not None]
    return Value(tuple(found)) if found else None


def place_of(record: Record) -> tuple[Any, ...]:
    """Return model, sampler, prompt and its number, by which a text is paired with Full's."""
    return record.model, record.task, record.context, record.sample_index


def fulls(folder: Path) -> Mapping[int, Record]:
    """Return Full's text after the same prompt in the same job, by the ``id`` of each of ``texts``."""
    return _read(folder).fulls


def _one(record: Record, full: Record | None, column: str, past: int) -> float | None:
    seen = record.measures
    if column == "average":
        return fmean(seen[name] for name in DISTINCT) if int(seen["tokens"]) == past else None
    if column not in MEASURED:
        return seen.get(column) if int(seen["tokens"]) == past else None
    if f"at_{past}_steps" not in seen:
        return None
    tokens, steps, ms = (seen[f"at_{past}_{name}"] for name in ("tokens", "steps", "ms"))
    match column:
        case "alpha":
            return (tokens - 1 - steps) / (seen["depth"] * steps) if seen["depth"] else None
        case "beta":
            return seen[f"at_{past}_ngram_tokens"] / (seen["depth"] * steps) if seen["depth"] else None
        case "tokens_per_step":
            return (tokens - 1) / steps
        case "minutes":
            return ms / 60_000
        case "ms_per_token":
            return ms / (tokens - 1)
    theirs = None if full is None else _one(full, None, "ms_per_token", past)
    return None if theirs is None else theirs * (tokens - 1) / ms
