"""Intervals, paired differences and corrections; every random draw is seeded by the cell that it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm
from scipy.stats import t as student

Floats = NDArray[np.float64]

# Below this many problems off the edge (or in disagreement) a resample often holds none of them, and a bootstrap
# interval shrinks to a point; the score intervals of Wilson and Newcombe stay honest there.
MIN_OFF_EDGE = 5

# A resample cannot leave the range of the data: with fewer problems than this a bootstrap interval is far too short.
MIN_RESAMPLED = 10


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one cell.

    Args:
        values: ``[n]``, one score a sample.
        clusters: ``[n]`` integers; samples of one problem share a number and are resampled together.
        trials: ``[n]``, how many right-or-wrong items each score is the mean of (1 for a score in [0, 1] of unknown
            make-up); ``None`` for scores that are no proportions, such as losses.
    """

    values: Floats
    clusters: NDArray[np.int64]
    trials: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval; ``low`` and ``high`` are NaN where the data cannot bound it (a loss of one problem)."""

    value: float
    low: float
    high: float
    kind: Literal["bootstrap", "student", "wilson", "newcombe", "mover"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean paired difference with its interval and two-sided p-value."""

    value: float
    low: float
    high: float
    p_value: float


def generator(*identity: object) -> np.random.Generator:
    """Return a random generator that depends on what is asked alone: never on order, process or platform."""
    digest = hashlib.blake2b("\x1f".join(map(str, identity)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def wilson_interval(proportion: float, trials: float, confidence: float) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion; ``trials`` may be an effective, fractional number.

    Source: Wilson 1927, equation for the inverted score test.
    """
    z2 = norm.ppf(0.5 + confidence / 2) ** 2
    centre = (proportion + z2 / (2 * trials)) / (1 + z2 / trials)
    spread = np.sqrt(proportion * (1 - proportion) * z2 / trials + (z2 / (2 * trials)) ** 2) / (1 + z2 / trials)
    low = 0.0 if proportion == 0 else max(0.0, centre - spread)
    high = 1.0 if proportion == 1 else min(1.0, centre + spread)
    return float(low), float(high)


def mean_estimate(scores: Scores, confidence: float, resamples: int, rng: np.random.Generator) -> Estimate:
    """Return the mean with its interval: BCa bootstrap over problems, Wilson's near 0 or 1, Student's for few problems.

    Wilson's interval counts the items behind the scores, thinned by the design effect that the spread between problems
    shows. At the very edge no spread is left to show one: there the items of a sample count in full, but draws of one
    problem (avg@k) count as one, as a problem that is never solved says little about another.

    Source: Efron 1987 (BCa); Korn and Graubard 1998 (effective sample size).
    """
    value = float(scores.values.mean())
    if _near_edge(scores):
        return Estimate(value, *wilson_interval(value, _effective_trials(scores), confidence), "wilson")
    sums, counts = _cluster_totals(scores.values, scores.clusters)
    if len(sums) < MIN_RESAMPLED:
        low, high = _student(sums, counts, confidence)
        bounds = (0.0, 1.0) if scores.trials is not None else (-np.inf, np.inf)
        return Estimate(value, max(low, bounds[0]), min(high, bounds[1]), "student")
    return Estimate(value, *_bca(sums, counts, _resampled_means(sums, counts, resamples, rng), confidence), "bootstrap")


def mean_of_means(parts: Sequence[Scores], confidence: float, resamples: int, rng: np.random.Generator) -> Estimate:
    """Return the unweighted mean over tasks; problems are resampled within each task.

    Where a task sits at the edge or has few problems, the tasks' own intervals are combined instead.

    Source: Zou and Donner 2008 (method of variance estimates recovery, MOVER).
    """
    tasks = [mean_estimate(part, confidence, resamples, rng) for part in parts]
    if len(tasks) == 1:
        return tasks[0]
    if any(task.kind != "bootstrap" for task in tasks):
        return _mover(tasks)
    draws = _joint_draws([_cluster_totals(part.values, part.clusters) for part in parts], resamples, rng)
    value = float(np.mean([task.value for task in tasks]))
    return Estimate(value, *_percentiles(draws, confidence), "bootstrap")


def paired_difference(
    pairs: Sequence[tuple[Scores, Scores]], confidence: float, resamples: int, rng: np.random.Generator
) -> Difference:
    """Return the mean of ``ours - reference`` over paired samples, averaged over tasks when several pairs are given.

    A task's interval is a BCa bootstrap over problems. It is Newcombe's where fewer than ``MIN_OFF_EDGE`` problems of a
    proportion differ, which does not shrink to a point when both sides are perfect, and Student's for few problems. The
    p-value is a bootstrap of the differences shifted to a mean of zero, never below the ``2 ** (1 - problems)`` that
    sign flips could show; where few problems differ, as near 100 %, it is that of paired sign flips.

    Args:
        pairs: per task, our scores and the reference's, sample by sample in the same order.

    Source: Newcombe 1998, method 10 (paired proportions); Efron and Tibshirani 1993, section 16.4 (shifted bootstrap).
    """
    totals = [_cluster_totals(ours.values - reference.values, ours.clusters) for ours, reference in pairs]
    draws = _joint_draws(totals, resamples, rng)
    tasks = [_task_difference(*pair, confidence, resamples, rng) for pair in pairs]
    if len(tasks) == 1:
        whole = tasks[0]
    elif any(task.kind != "bootstrap" for task in tasks):
        whole = _mover(tasks)
    else:
        value = float(np.mean([task.value for task in tasks]))
        whole = Estimate(value, *_percentiles(draws, confidence), "bootstrap")
    if any(task.kind == "newcombe" for task in tasks):
        p_value = sign_flip(np.concatenate([sums / counts.sum() for sums, counts in totals]), resamples, rng)
    else:
        p_value = _shifted_p_value(draws, whole.value, totals)
    return Difference(whole.value, whole.low, whole.high, p_value)


def mcnemar_exact(wins: int, losses: int) -> float:
    """Return the exact two-sided p-value of McNemar's test; pairs that agree do not count.

    Source: McNemar 1947; the binomial form is the exact sign test.
    """
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def sign_flip(gaps: Floats, draws: int, rng: np.random.Generator) -> float:
    """Return the two-sided p-value of a paired sign-flip permutation test of a zero mean.

    Every pattern of signs is tried where ``draws`` allows it, else as many random ones.

    Args:
        gaps: ``[n]``, paired differences, one an independent problem.
        draws: the most patterns to try.
        rng: draws the random ones.

    Source: Fisher 1935, section 21; Phipson and Smyth 2010 (one is added to both counts of random draws).
    """
    found = gaps[gaps != 0]
    if not len(found):
        return 1.0
    exact = 2 ** len(found) <= draws
    if exact:
        signs = 1 - 2 * ((np.arange(2 ** len(found))[:, None] >> np.arange(len(found))) & 1)
    else:
        signs = rng.choice(np.array([-1, 1], dtype=np.int8), size=(draws, len(found)))
    extreme = int(np.count_nonzero(np.abs(signs @ found) >= abs(found.sum()) * (1 - 1e-12)))
    return extreme / len(signs) if exact else (1 + extreme) / (1 + draws)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values that bound the chance of any false finding in the family.

    Source: Holm 1979.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(value) for value in adjusted]


def samples_for_margin(margin: float, tasks: int, confidence: float = 0.95) -> int:
    """Return the samples a task with which a method that loses no answer is shown to lie within a margin of Full.

    Both sides perfect, a task's half-width is ``z^2 / (n + z^2)``; over tasks it shrinks by their square root.

    Args:
        margin: the margin, as a share.
        tasks: tasks of one answer a sample in the suite's mean.
        confidence: of the interval.

    Source: Newcombe 1998, method 10, at 1 and 1; Zou and Donner 2008 over tasks.
    """
    z2 = float(norm.ppf(0.5 + confidence / 2)) ** 2
    return int(np.ceil(z2 * (1 / (margin * np.sqrt(tasks)) - 1)))


def _task_difference(
    ours: Scores, reference: Scores, confidence: float, resamples: int, rng: np.random.Generator
) -> Estimate:
    gaps = ours.values - reference.values
    value = float(gaps.mean())
    if (
        ours.trials is not None
        and reference.trials is not None
        and _problems_with(gaps != 0, ours.clusters) < MIN_OFF_EDGE
    ):
        return Estimate(value, *_newcombe(ours, reference, confidence), "newcombe")
    sums, counts = _cluster_totals(gaps, ours.clusters)
    if len(sums) < MIN_RESAMPLED:
        return Estimate(value, *_student(sums, counts, confidence), "student")
    return Estimate(value, *_bca(sums, counts, _resampled_means(sums, counts, resamples, rng), confidence), "bootstrap")


def _mover(tasks: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, each side's distance combined as variances are."""
    value = float(np.mean([task.value for task in tasks]))
    below = float(np.sqrt(sum((task.value - task.low) ** 2 for task in tasks))) / len(tasks)
    above = float(np.sqrt(sum((task.high - task.value) ** 2 for task in tasks))) / len(tasks)
    return Estimate(value, value - below, value + above, "mover")


def _near_edge(scores: Scores) -> bool:
    if scores.trials is None:
        return False
    off = (_problems_with(scores.values != edge, scores.clusters) for edge in (0, 1))
    return min(off) < MIN_OFF_EDGE


def _problems_with(hits: NDArray[np.bool_], clusters: NDArray[np.int64]) -> int:
    """Problems with a sample that is hit."""
    return len(np.unique(clusters[hits]))


def _effective_trials(scores: Scores) -> float:
    """Effective sample size from the design effect."""
    trials = scores.trials if scores.trials is not None else np.ones(len(scores.values), dtype=np.int64)
    total = float(trials.sum())
    sums, counts = _cluster_totals(scores.values, scores.clusters)
    if len(sums) < 2:
        return 1.0
    value, variance = float(scores.values.mean()), _variance(sums, counts)
    if variance == 0:
        return total * len(sums) / len(scores.values)
    return float(np.clip(value * (1 - value) / variance, len(sums), total))


def _cluster_totals(values: Floats, clusters: NDArray[np.int64]) -> tuple[Floats, Floats]:
    _, index = np.unique(clusters, return_inverse=True)
    sums = np.bincount(index, weights=values)
    return np.asarray(sums, dtype=np.float64), np.asarray(np.bincount(index), dtype=np.float64)


def _variance(sums: Floats, counts: Floats) -> float:
    """Variance of a mean over problems, each of which may hold several samples (ratio estimator)."""
    residuals = sums - counts * sums.sum() / counts.sum()
    return len(sums) / (len(sums) - 1) * float(residuals @ residuals) / float(counts.sum()) ** 2


def _student(sums: Floats, counts: Floats, confidence: float) -> tuple[float, float]:
    if len(sums) < 2:
        return float("nan"), float("nan")
    half = float(student.ppf(0.5 + confidence / 2, len(sums) - 1)) * _variance(sums, counts) ** 0.5
    value = float(sums.sum() / counts.sum())
    return value - half, value + half


def _resampled_means(sums: Floats, counts: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Means of ``resamples`` draws of whole problems, ``[resamples]``."""
    drawn = rng.integers(len(sums), size=(resamples, len(sums)))
    return np.asarray(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), dtype=np.float64)


def _joint_draws(totals: Sequence[tuple[Floats, Floats]], resamples: int, rng: np.random.Generator) -> Floats:
    """Resampled means of the tasks' means, ``[resamples]``."""
    return np.asarray(np.mean([_resampled_means(*task, resamples, rng) for task in totals], axis=0), dtype=np.float64)


def _percentiles(draws: Floats, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _bca(sums: Floats, counts: Floats, draws: Floats, confidence: float) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval of a mean over problems."""
    value = float(sums.sum() / counts.sum())
    jackknife = (sums.sum() - sums) / (counts.sum() - counts)
    pull = jackknife.mean() - jackknife
    if not np.any(np.abs(pull) > 1e-12 * max(1.0, abs(value))):
        return value, value
    acceleration = (pull**3).sum() / (6 * (pull**2).sum() ** 1.5)
    below = (np.count_nonzero(draws < value) + np.count_nonzero(draws <= value)) / (2 * len(draws))
    bias = norm.ppf(np.clip(below, 1 / len(draws), 1 - 1 / len(draws)))
    shifted = bias + norm.ppf([(1 - confidence) / 2, (1 + confidence) / 2])
    low, high = np.quantile(draws, norm.cdf(bias + shifted / (1 - acceleration * shifted)))
    return float(low), float(high)


def _shifted_p_value(draws: Floats, value: float, totals: Sequence[tuple[Floats, Floats]]) -> float:
    problems = sum(len(sums) for sums, _ in totals)
    if problems < 2 or value == 0:
        return 1.0
    smallest = min(len(sums) for sums, _ in totals)
    # Resampling n problems understates the variance of their mean by (n - 1) / n.
    inflate = np.sqrt(smallest / (smallest - 1)) if smallest > 1 else 1.0
    extreme = np.count_nonzero(np.abs(draws - value) * inflate >= abs(value) * (1 - 1e-12))
    return float(max((1 + extreme) / (1 + len(draws)), min(1.0, 2.0 ** (1 - problems))))


def _newcombe(ours: Scores, reference: Scores, confidence: float) -> tuple[float, float]:
    p, q = float(ours.values.mean()), float(reference.values.mean())
    p_low, p_high = wilson_interval(p, _effective_trials(ours), confidence)
    q_low, q_high = wilson_interval(q, _effective_trials(reference), confidence)
    varies = np.ptp(ours.values) > 0 and np.ptp(reference.values) > 0
    phi = float(np.corrcoef(ours.values, reference.values)[0, 1]) if varies else 0.0
    below = (p - p_low) ** 2 - 2 * phi * (p - p_low) * (q_high - q) + (q_high - q) ** 2
    above = (p_high - p) ** 2 - 2 * phi * (p_high - p) * (q - q_low) + (q - q_low) ** 2
    return p - q - float(np.sqrt(max(below, 0.0))), p - q + float(np.sqrt(max(above, 0.0)))
