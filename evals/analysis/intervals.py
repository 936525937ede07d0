"""Return 95 % intervals of means over independent units: percentile bootstrap, and Wilson's where few units differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from longdecode.evals.stats import wilson_interval

Floats = NDArray[np.float64]

FEW_DIFFER = 5
"""Below so many units that differ, most resamples hold none of them and a bootstrap interval shrinks to a point."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its bounds; the bounds are NaN where one unit leaves nothing to resample."""

    value: float
    low: float
    high: float
    kind: Literal["bootstrap", "wilson", "none"]


def mean_of_groups(*groups: Floats, axis: int = -1) -> Floats:
    """Return the mean over groups (tasks) of their means over units, along an axis."""
    return np.asarray(np.mean([np.mean(group, axis=axis) for group in groups], axis=0))


def percentile_bootstrap(
    groups: Sequence[Floats], confidence: float, resamples: int, rng: np.random.Generator
) -> Interval:
    """Return the mean over groups with its percentile bootstrap interval; units are resampled within their group.

    Args:
        groups: one array a task, ``[units]``, one value a prompt, book or problem.
        confidence: coverage of the interval.
        resamples: bootstrap draws.
        rng: draws them.

    Source: Efron 1979; Efron and Tibshirani 1993, chapter 13.
    """
    value = float(mean_of_groups(*groups))
    if min(map(len, groups)) < 2:
        return Interval(value, np.nan, np.nan, "none")
    if all(np.ptp(group) == 0 for group in groups):
        return Interval(value, value, value, "bootstrap")
    found: Any = bootstrap(
        tuple(groups), mean_of_groups, n_resamples=resamples, batch=max(1, 2_000_000 // max(map(len, groups))),
        confidence_level=confidence, method="percentile", vectorized=True, rng=rng,
    )  # fmt: skip
    return Interval(value, float(found.confidence_interval.low), float(found.confidence_interval.high), "bootstrap")


def paired_wilson(groups: Sequence[Floats], confidence: float) -> Interval:
    """Return a mean paired difference of scores in [0, 1], bounded by Wilson's limits of what was won and lost.

    The difference is the share won minus the share lost. Each share has Wilson's limits over units, and the two
    distances are combined by the square root of their sum of squares. Where no unit differs the bounds are
    ``z^2 / (n + z^2)`` on each side: 189 equal answers are what 2 points need.

    Args:
        groups: one array a task, ``[units]``, differences in [-1, 1].
        confidence: coverage of the interval.

    Source: Wilson 1927; Newcombe 1998 (square-and-add of Wilson's limits); Kish 1965 (effective number of units where
    tasks have unequal ones).
    """
    weights = [np.full(len(group), 1 / (len(groups) * len(group))) for group in groups]
    units = 1 / float(sum((weight**2).sum() for weight in weights))
    won, lost = (
        float(sum((weight * np.maximum(sign * group, 0)).sum() for weight, group in zip(weights, groups, strict=True)))
        for sign in (1, -1)
    )
    (won_low, won_high), (lost_low, lost_high) = (wilson_interval(share, units, confidence) for share in (won, lost))
    below, above = np.hypot(won - won_low, lost_high - lost), np.hypot(won_high - won, lost - lost_low)
    return Interval(won - lost, won - lost - float(below), won - lost + float(above), "wilson")


def paired_interval(
    groups: Sequence[Floats], bounded: bool, confidence: float, resamples: int, rng: np.random.Generator
) -> Interval:
    """Return a mean paired difference: percentile bootstrap over units, Wilson's at the edge.

    Args:
        groups: one array a task, ``[units]``, differences by unit.
        bounded: whether the scores lie in [0, 1]; a loss has no edge.
        confidence: coverage of the interval.
        resamples: bootstrap draws.
        rng: draws them.
    """
    differing = sum(int(np.count_nonzero(group)) for group in groups)
    if bounded and differing < FEW_DIFFER:
        return paired_wilson(groups, confidence)
    return percentile_bootstrap(groups, confidence, resamples, rng)
