"""Paired comparisons of any two labels, and the runs nearest to a share of Full's bytes or tokens, from the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longdecode.evals import stats
from longdecode.evals.problems import problem_of
from longdecode.evals.records import Record

Key = tuple[str, str, int, int, int]
"""A sample across methods: suite, task, context, seed, number."""
SIGN_FLIPS = 20_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample's score, right-or-wrong items behind it (1 if unknown, 0 of a loss), its problem, and what it read."""

    score: float
    items: int
    problem: tuple[Any, ...]
    read: float


Scored = Mapping[Key, Sample]
Measure = Callable[[Record], float]


def total_bytes(record: Record) -> float:
    """Return the bytes of a step: keys, values and what the selector reads to choose them."""
    return record.measures.get("kv_bytes_per_step", math.nan) + record.measures.get("metadata_bytes_per_step", 0.0)


def sparse_tokens(record: Record) -> float:
    """Return the tokens that the heads and layers under the budget read, or all where none is under it."""
    return float(record.measures.get("kv_tokens_read_sparse") or record.measures.get("kv_tokens_read") or math.nan)


@dataclass(frozen=True, slots=True)
class Point:
    """One run: a label at one budget, its samples, and the share of Full's bytes (or tokens) that it read."""

    label: str
    budget: str
    share: float
    samples: Scored

    @property
    def value(self) -> float:
        """Mean over tasks (and contexts) of their means."""
        return mean_of(self.samples)


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean paired difference: interval, problems won and lost, and the p-value of a zero difference.

    ``after_holm`` says that the p-value is corrected over the methods that share a table of the suite's page.
    """

    value: float
    low: float
    high: float
    wins: int
    losses: int
    p_value: float
    after_holm: bool = False

    def sign(self, alpha: float) -> int:
        """Return 1 or -1 where the test rejects a zero difference at ``alpha`` and the interval excludes it, else 0."""
        if self.p_value >= alpha or self.low <= 0 <= self.high:
            return 0
        return 1 if self.value > 0 else -1


def scored(records: Sequence[Record], measure: Measure = total_bytes) -> dict[Key, Sample]:
    """Return the samples of records that have a score, with what ``measure`` says each read."""
    return {
        (r.suite, r.task, r.context, r.seed, r.sample_index): Sample(
            float(r.score), _items(r), problem_of(r), measure(r)
        )
        for r in records
        if r.status == "ok" and r.score is not None
    }


def points(records: Sequence[Record], reference: str, measure: Measure = total_bytes) -> list[Point]:
    """Return every run that has all samples of the reference method, with its share of the reference's reads."""
    full = scored([r for r in records if r.method == reference], measure)
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.label, record.budget), []).append(record)
    found = []
    for (label, budget), mine in groups.items():
        samples = scored(mine, measure)
        if set(samples) == set(full) and samples:
            found.append(Point(label, budget, achieved_share(samples, full), samples))
    return found


def achieved_share(samples: Scored, full: Scored) -> float:
    """Return what was read as a share of what Full read on the same samples: the mean over places of their ratios."""
    ratios = []
    for place in _places(samples):
        mine = np.mean([sample.read for key, sample in samples.items() if key[:3] == place])
        everything = np.mean([sample.read for key, sample in full.items() if key[:3] == place])
        ratios.append(float(mine / everything))
    return float(np.mean(ratios))


def nearest_runs(rivals: Sequence[Point], share: float) -> tuple[Point | None, Point | None]:
    """Return the run that reads most below a share, and the one that reads least at or above it; nothing is blended."""
    below = [point for point in rivals if point.share < share * (1 - 1e-9)]
    above = [point for point in rivals if point not in below]
    return max(below, key=lambda p: p.share, default=None), min(above, key=lambda p: p.share, default=None)


def average(runs: Sequence[Scored]) -> dict[Key, Sample]:
    """Each sample's mean score over several labels (such as seeds of one kind), where all have it."""
    shared = set.intersection(*(set(run) for run in runs)) if runs else set()
    return {
        key: Sample(
            float(np.mean([run[key].score for run in runs])),
            runs[0][key].items,
            runs[0][key].problem,
            float(np.mean([run[key].read for run in runs])),
        )
        for key in sorted(shared)
    }


def difference(ours: Scored, theirs: Scored, confidence: float, resamples: int, *identity: object) -> Paired:
    """Return the mean paired difference over the tasks and contexts that both have, each weighing the same.

    Where a task has too few problems that differ for an interval of its own, as near 100 %, equally large tasks are
    pooled. The p-value is McNemar's where every difference is of one size, else that of paired sign flips.

    Args:
        identity: what the random draws are seeded by.
    """
    shared = sorted(key for key in ours if key in theirs)
    groups = [[key for key in shared if key[:3] == place] for place in sorted({key[:3] for key in shared})]
    weights = {key: 1 / (len(keys) * len(groups)) for keys in groups for key in keys}
    gaps: dict[object, float] = {}
    for key in shared:
        problem = (key[:3], ours[key].problem)
        gaps[problem] = gaps.get(problem, 0.0) + weights[key] * (ours[key].score - theirs[key].score)
    differing = [sum(ours[key].score != theirs[key].score for key in keys) for keys in groups]
    if min(differing) < stats.MIN_OFF_EDGE and len({len(keys) for keys in groups}) == 1:
        groups = [shared]
    pairs = [tuple(_scores([side[key] for key in keys]) for side in (ours, theirs)) for keys in groups]
    rng = stats.generator("pairs", *identity)
    found = stats.paired_difference([(a, b) for a, b in pairs], confidence, resamples, rng)
    values = np.array(list(gaps.values()))
    wins, losses = int((values > 0).sum()), int((values < 0).sum())
    sizes = np.abs(values[values != 0])
    equal = len(sizes) > 0 and bool(np.allclose(sizes, sizes[0]))
    p = stats.mcnemar_exact(wins, losses) if equal else stats.sign_flip(values, SIGN_FLIPS, rng)
    return Paired(found.value, found.low, found.high, wins, losses, p)


def estimate(samples: Scored, confidence: float, resamples: int, *identity: object) -> stats.Estimate:
    """Mean over tasks and contexts, each weighing the same, with its interval."""
    parts = []
    for place in _places(samples):
        keys = sorted(key for key in samples if key[:3] == place)
        parts.append(_scores([samples[key] for key in keys]))
    return stats.mean_of_means(parts, confidence, resamples, stats.generator("mean", *identity))


def mean_of(samples: Scored) -> float:
    """Mean over tasks and contexts of their means."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for key, sample in samples.items():
        groups.setdefault(key[:3], []).append(sample.score)
    return float(np.mean([np.mean(values) for values in groups.values()]))


def _places(samples: Scored) -> list[tuple[str, str, int]]:
    return sorted({key[:3] for key in samples})


def _scores(samples: Sequence[Sample]) -> stats.Scores:
    problems: dict[object, int] = {}
    clusters = [problems.setdefault(sample.problem, len(problems)) for sample in samples]
    values = np.array([sample.score for sample in samples], dtype=np.float64)
    bounded = bool(np.all((values >= 0) & (values <= 1))) and all(sample.items for sample in samples)
    trials = np.array([sample.items for sample in samples], dtype=np.int64) if bounded else None
    return stats.Scores(values, np.array(clusters, dtype=np.int64), trials)


def _items(record: Record) -> int:
    """Right-or-wrong items that a score is the mean of; 1 where it is not made that way, 0 of a loss."""
    if not record.higher_is_better:
        return 0
    parts = record.parts or []
    made_of_parts = set(parts) <= {0.0, 1.0} and bool(parts) and abs(np.mean(parts) - float(record.score or 0)) < 1e-9
    return len(parts) if made_of_parts else 1
