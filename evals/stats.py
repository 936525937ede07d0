"""Statistics as small pure functions: intervals, a paired test, Holm's correction, the margin verdict.

Intervals are of two kinds, the percentile bootstrap over units and, where few units differ, Wilson's. Student's is the
third, for what has two to nine units, fewer than either can use: long texts, and trainings of one fork. The 5th and
95th percentile beside a median time are its spread, no interval. Wilson's and Holm's formulas are written out here:
scipy has the first for whole numbers of units alone, and not the second.

A *unit* is what is independent: a prompt, a book, a problem. A *group* holds the units of one task, ``[units]``; a mean
over several tasks is the mean of its groups' means, and units are resampled within their group.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import bootstrap, permutation_test
from scipy.stats import t as student

Floats = NDArray[np.float64]
Groups = Sequence[Floats]
Verdict = Literal["within", "worse", "cannot tell"]

FEW_DIFFER = 5
"""Below so many units that differ, most resamples hold none of them and a bootstrap interval shrinks to a point."""
FEWEST_UNITS = 10
"""Below so many units a resample is too alike the data for its bounds to decide anything."""
MARGINS = {"points": 2.0, "nats/token": 0.02, "nats/byte": 0.02}
"""The largest loss that counts as none, by unit; other units have no margin."""
_DRAWN_AT_ONCE = 2_000_000
_DECIMALS = 12
"""Of a sum of differences: far finer than a step of a score over its units, far coarser than rounding errors."""


class Interval(NamedTuple):
    """A value with its bounds; NaN where there is nothing to say, or where one unit leaves nothing to resample."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Spread:
    """Coverage, bootstrap draws and seed of a run's intervals."""

    confidence: float = 0.95
    resamples: int = 10_000
    seed: int = 0


def generator(*identity: object) -> np.random.Generator:
    """Return a random generator that depends on what is asked alone: never on order, process or platform."""
    digest = hashlib.blake2b("\x1f".join(map(str, identity)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def mean_of_groups(*groups: Floats, axis: int = -1) -> Floats:
    """Return the mean over groups of their means over units, along an axis."""
    return np.asarray(np.mean([np.mean(group, axis=axis) for group in groups], axis=0))


def bootstrap_interval(
    groups: Groups, spread: Spread, rng: np.random.Generator, statistic: Callable[..., Floats] = mean_of_groups
) -> Interval:
    """Return a statistic with its percentile bootstrap interval; units are resampled within their group.

    Args:
        groups: one array a group.
        spread: coverage and draws.
        rng: draws them.
        statistic: takes the groups and ``axis``.

    Source: Efron 1979; Efron and Tibshirani 1993, chapter 13.
    """
    value = float(statistic(*groups))
    if min(map(len, groups)) < 2:
        return Interval(value)
    if all(np.ptp(group) == 0 for group in groups):
        return Interval(value, value, value)
    found: Any = bootstrap(
        tuple(groups), statistic, n_resamples=spread.resamples, batch=max(1, _DRAWN_AT_ONCE // max(map(len, groups))),
        confidence_level=spread.confidence, method="percentile", vectorized=True, rng=rng,
    )  # fmt: skip
    return Interval(value, float(found.confidence_interval.low), float(found.confidence_interval.high))


def student_interval(value: float, groups: Groups, confidence: float) -> tuple[Interval, float]:
    """Return a mean, or a difference of two, with Student's interval and the p-value of 0.

    It is for units too few to resample: texts, trainings. The bounds are NaN where no group has two units.

    Args:
        value: the mean of one group, or the difference of two groups' means.
        groups: each ``[units]``; one of a single unit, such as a checkpoint that nobody here trained, has no spread.
        confidence: coverage.

    Source: Student 1908; Welch 1947 (unequal variances; degrees of freedom by Satterthwaite 1946).
    """
    several = [group for group in groups if len(group) > 1]
    errors = [float(np.var(group, ddof=1)) / len(group) for group in several]
    if not (error := math.sqrt(sum(errors))):
        return (Interval(value, value, value) if several else Interval(value)), 0.0
    freedom = error**4 / sum(each**2 / (len(group) - 1) for each, group in zip(errors, several, strict=True))
    low, high = student.interval(confidence, freedom, value, error)
    return Interval(value, float(low), float(high)), float(2 * student.sf(abs(value) / error, freedom))


def wilson_interval(share: float, units: float, confidence: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share; ``units`` may be an effective, fractional number.

    Source: Wilson 1927, equation for the inverted score test.
    """
    z2 = ndtri(0.5 + confidence / 2) ** 2
    centre = (share + z2 / (2 * units)) / (1 + z2 / units)
    half = np.sqrt(share * (1 - share) * z2 / units + (z2 / (2 * units)) ** 2) / (1 + z2 / units)
    low = 0.0 if share == 0 else max(0.0, centre - half)
    return float(low), float(1.0 if share == 1 else min(1.0, centre + half))


def effective_units(groups: Groups) -> float:
    """Return the units of one group that would give a mean over these groups the same variance.

    Source: Kish 1965 (effective sample size of weights).
    """
    return len(groups) ** 2 / sum(1 / len(group) for group in groups)


def mean_interval(groups: Groups, bounded: bool, spread: Spread, rng: np.random.Generator) -> Interval:
    """Return a mean with its interval: percentile bootstrap over units, Wilson's at the edge.

    Args:
        groups: one array a task, scores by unit.
        bounded: whether the scores lie in [0, 1]; a loss has no edge.
        spread: coverage and draws.
        rng: draws them.
    """
    if bounded and min(sum(np.count_nonzero(group != edge) for group in groups) for edge in (0, 1)) < FEW_DIFFER:
        value = float(mean_of_groups(*groups))
        return Interval(value, *wilson_interval(value, effective_units(groups), spread.confidence))
    return bootstrap_interval(groups, spread, rng)


def paired_interval(groups: Groups, bounded: bool, spread: Spread, rng: np.random.Generator) -> Interval:
    """Return a mean paired difference: percentile bootstrap over units, Wilson's where few units differ.

    At the edge the difference is the share won minus the share lost. Each share has Wilson's limits over units, and the
    two distances are combined by the square root of their sum of squares. Where no unit differs the bounds are
    ``z^2 / (n + z^2)`` on each side: 189 equal answers are what 2 points need.

    Args:
        groups: one array a task, differences by unit.
        bounded: whether the scores lie in [0, 1].
        spread: coverage and draws.
        rng: draws them.

    Source: Wilson 1927; Newcombe 1998 (square-and-add of Wilson's limits).
    """
    if not bounded or sum(np.count_nonzero(group) for group in groups) >= FEW_DIFFER:
        return bootstrap_interval(groups, spread, rng)
    won, lost = (float(mean_of_groups(*(np.maximum(sign * group, 0) for group in groups))) for sign in (1, -1))
    units = effective_units(groups)
    (won_low, won_high), (lost_low, lost_high) = (wilson_interval(x, units, spread.confidence) for x in (won, lost))
    below, above = np.hypot(won - won_low, lost_high - lost), np.hypot(won_high - won, lost - lost_low)
    return Interval(won - lost, won - lost - float(below), won - lost + float(above))


def sign_flip_p(groups: Groups, draws: int, rng: np.random.Generator) -> float:
    """Return the two-sided p-value of a zero mean difference; each unit's sign may flip.

    Units that do not differ cannot change the statistic and are left out. Every pattern of signs is tried where
    ``draws`` allows it, else as many random ones.

    Args:
        groups: one array a task, paired differences; tasks weigh the same.
        draws: the most patterns to try.
        rng: draws the random ones.

    Source: Fisher 1935, section 21; Phipson and Smyth 2010 (one is added to both counts of random draws).
    """
    gaps = np.concatenate([group / (len(groups) * len(group)) for group in groups])
    gaps = gaps[gaps != 0]
    if len(gaps) < 2:
        return 1.0  # of one unit both patterns of signs are as extreme
    found: Any = permutation_test(
        (gaps,), _exact_sum, permutation_type="samples", n_resamples=draws, batch=max(1, _DRAWN_AT_ONCE // len(gaps)),
        vectorized=True, rng=rng,
    )  # fmt: skip
    return float(found.pvalue)


def _exact_sum(gaps: Floats, axis: int = -1) -> Floats:
    """Return the sum without its rounding error, so that patterns of signs with one mean are equally extreme."""
    return np.asarray(np.round(np.sum(gaps, axis=axis), _DECIMALS))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values that bound the chance of any false finding in the family.

    Source: Holm 1979.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order, adjusted = np.argsort(p, kind="stable"), np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p)))), 1.0)
    return [float(value) for value in adjusted]


def judge(
    low: float, high: float, p_holm: float, margin: float | None, higher_is_better: bool, units: int, alpha: float
) -> Verdict:
    """Return the verdict on a difference, a minus b, with its interval.

    ``within``: the whole interval of the loss lies below the margin; a gain is no loss. ``worse``: it does not, the
    interval of the loss excludes 0, and the p-value corrected over the table's variants is below ``alpha``. Otherwise
    ``cannot tell``, as where there are too few units. A small sure loss, such as 0.4 points [0.2, 0.7], is ``within``.
    """
    least, most = (-high, -low) if higher_is_better else (low, high)
    if margin is None or units < FEWEST_UNITS or not (math.isfinite(least) and math.isfinite(most)):
        return "cannot tell"
    if most <= margin:
        return "within"
    return "worse" if least > 0 and p_holm < alpha else "cannot tell"


def front_shares(losses: Floats, speeds: Floats) -> Floats:
    """Return the share of draws in which no other point is as good at both and better at one (the Pareto front).

    Args:
        losses: ``[points, draws]``, lower is better.
        speeds: ``[points, draws]``, higher is better.

    Returns:
        ``[points]``.
    """
    ours, theirs = (losses[:, None], speeds[:, None]), (losses[None], speeds[None])
    as_good = (theirs[0] <= ours[0]) & (theirs[1] >= ours[1])
    better = (theirs[0] < ours[0]) | (theirs[1] > ours[1])
    return np.asarray(1 - (as_good & better).any(axis=1).mean(axis=1))


def rank_ranges(losses: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Return the best and the worst rank that each row may have: two rows are apart where their difference is proven.

    The p-value of a pair is that of a normal difference with the standard error of its draws, corrected over all pairs.

    Args:
        losses: ``[rows, draws]``, lower is better; a draw has the same prompts in all rows.
        alpha: the chance of any two rows wrongly apart.

    Returns:
        ``[rows]`` twice, from 1.

    Source: Holm 1979.
    """
    i, j = np.triu_indices(len(losses), 1)
    gaps, spread = losses.mean(axis=1)[i] - losses.mean(axis=1)[j], np.atleast_2d(np.cov(losses))
    errors = np.sqrt(np.maximum(spread[i, i] + spread[j, j] - 2 * spread[i, j], 0))
    far = np.divide(np.abs(gaps), errors, out=np.where(gaps == 0, 0.0, np.inf), where=errors > 0)
    proven = np.array(holm(2 * ndtr(-far))) < alpha
    below = np.zeros((len(losses), len(losses)), bool)
    below[i, j], below[j, i] = proven & (gaps < 0), proven & (gaps > 0)
    return 1 + below.sum(axis=0), len(losses) - below.sum(axis=1)
