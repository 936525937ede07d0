"""Paired differences between any two labels, at declared budgets or at equal achieved ones, from the records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from longdecode.evals import stats
from longdecode.evals.records import Record

Key = tuple[str, str, int, int, int]
"""A sample across methods: suite, task, context, seed, number."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample's score under some way of reading; ``items`` right-or-wrong items stand behind it (1 if unknown)."""

    score: float
    items: int
    prompt: str | None
    read: float


Scored = Mapping[Key, Sample]


@dataclass(frozen=True, slots=True)
class Point:
    """One label at one budget: its samples, mean score and the share of Full's reads that it really read."""

    label: str
    budget: str
    share: float
    samples: Scored

    @property
    def value(self) -> float:
        """Mean over tasks (and contexts) of their means."""
        return mean_of(self.samples)


@dataclass(frozen=True, slots=True)
class Against:
    """A rival at the share of reads of a point: interpolated between two budgets, or its nearest one."""

    label: str
    samples: Scored
    share: float
    budgets: str
    nearest: str = ""

    @property
    def value(self) -> float:
        """Mean as :attr:`Point.value`."""
        return mean_of(self.samples)


def scored(records: Sequence[Record], *, sparse_heads: bool = False) -> dict[Key, Sample]:
    """Samples of records that have a score.

    Args:
        sparse_heads: count the reads of the heads under the budget alone, where there are any, not those of all heads.
    """
    return {
        (r.suite, r.task, r.context, r.seed, r.sample_index): Sample(
            float(r.score),
            _items(r),
            r.prompt_sha256,
            float(r.measures.get("kv_tokens_read_sparse" if sparse_heads else "kv_tokens_read") or math.nan),
        )
        for r in records
        if r.status == "ok" and r.score is not None
    }


def points(records: Sequence[Record], full: Scored, *, sparse_heads: bool = False) -> list[Point]:
    """Every label and budget that has all samples of Full, with its achieved share of Full's reads.

    Args:
        sparse_heads: as in :func:`scored`.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.label, record.budget), []).append(record)
    found = []
    for (label, budget), mine in groups.items():
        samples = scored(mine, sparse_heads=sparse_heads)
        if set(samples) == set(full) and samples:
            found.append(Point(label, budget, achieved_share(samples, full), samples))
    return found


def achieved_share(samples: Scored, full: Scored) -> float:
    """Tokens read as a share of what Full read on the same samples: the mean over places of their ratios."""
    ratios = []
    for place in _places(samples):
        mine = np.mean([sample.read for key, sample in samples.items() if key[:3] == place])
        everything = np.mean([sample.read for key, sample in full.items() if key[:3] == place])
        ratios.append(float(mine / everything))
    return float(np.mean(ratios))


def at_share(rivals: Sequence[Point], share: float) -> Against:
    """A rival's points, interpolated sample by sample to an achieved share; the nearest one where the share is outside.

    Interpolation is linear in the logarithm of the share, as the figures' axes are.
    """
    ordered = sorted(rivals, key=lambda point: point.share)
    above = next((place for place, point in enumerate(ordered) if point.share >= share), len(ordered))
    if above == 0 or above == len(ordered):
        near = ordered[min(above, len(ordered) - 1)]
        return Against(near.label, near.samples, near.share, near.budget, "reads more" if above == 0 else "reads less")
    low, high = ordered[above - 1], ordered[above]
    weight = math.log(share / low.share) / math.log(high.share / low.share)
    return Against(low.label, blend(low.samples, high.samples, weight), share, f"{low.budget} {high.budget}")


def blend(low: Scored, high: Scored, weight: float) -> dict[Key, Sample]:
    """Sample by sample ``(1 - weight) * low + weight * high``."""
    return {
        key: Sample(
            (1 - weight) * low[key].score + weight * high[key].score,
            min(low[key].items, high[key].items),
            low[key].prompt,
            (1 - weight) * low[key].read + weight * high[key].read,
        )
        for key in low
        if key in high
    }


def average(runs: Sequence[Scored]) -> dict[Key, Sample]:
    """Each sample's mean score over several labels (such as seeds of one kind), where all have it."""
    shared = set.intersection(*(set(run) for run in runs)) if runs else set()
    return {
        key: Sample(
            float(np.mean([run[key].score for run in runs])),
            runs[0][key].items,
            runs[0][key].prompt,
            float(np.mean([run[key].read for run in runs])),
        )
        for key in sorted(shared)
    }


def difference(ours: Scored, theirs: Scored, confidence: float, resamples: int, *identity: object) -> stats.Difference:
    """Mean paired difference over the tasks and contexts that both have, each weighing the same.

    Args:
        identity: what the random draws are seeded by.
    """
    pairs = []
    for place in _places(ours):
        keys = sorted(key for key in ours if key[:3] == place and key in theirs)
        if keys:
            pairs.append((_scores([ours[key] for key in keys], keys), _scores([theirs[key] for key in keys], keys)))
    return stats.paired_difference(pairs, confidence, resamples, stats.generator("pairs", *identity))


def estimate(samples: Scored, confidence: float, resamples: int, *identity: object) -> stats.Estimate:
    """Mean over tasks and contexts, each weighing the same, with its interval."""
    parts = []
    for place in _places(samples):
        keys = sorted(key for key in samples if key[:3] == place)
        parts.append(_scores([samples[key] for key in keys], keys))
    return stats.mean_of_means(parts, confidence, resamples, stats.generator("mean", *identity))


def mean_of(samples: Scored) -> float:
    """Mean over tasks and contexts of their means."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for key, sample in samples.items():
        groups.setdefault(key[:3], []).append(sample.score)
    return float(np.mean([np.mean(values) for values in groups.values()]))


def _places(samples: Scored) -> list[tuple[str, str, int]]:
    return sorted({key[:3] for key in samples})


def _scores(samples: Sequence[Sample], keys: Sequence[Key]) -> stats.Scores:
    problems: dict[object, int] = {}
    names: list[object] = [
        sample.prompt if sample.prompt else key for sample, key in zip(samples, keys, strict=True)
    ]  # fmt: skip
    clusters = [problems.setdefault(name, len(problems)) for name in names]
    values = np.array([sample.score for sample in samples], dtype=np.float64)
    bounded = bool(np.all((values >= 0) & (values <= 1)))
    trials = np.array([sample.items for sample in samples], dtype=np.int64) if bounded else None
    return stats.Scores(values, np.array(clusters, dtype=np.int64), trials)


def _items(record: Record) -> int:
    """Right-or-wrong items that a score is the mean of; 1 where it is not made that way."""
    parts = record.parts or []
    made_of_parts = set(parts) <= {0.0, 1.0} and bool(parts) and abs(np.mean(parts) - float(record.score or 0)) < 1e-9
    return len(parts) if made_of_parts else 1
